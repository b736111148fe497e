// The program beside the map: its lines, of which only those in sight are in the page; or, where
// they are folded, bands of its layers or loops; or positions where there is no program.

const LEAST_READABLE = 9; // Pixels of a line.
const BAND = 64; // Pixels across, at least, of a band.

// Bands [depth, first line, end, text] of a listing: of the modules that its lines are of, or of
// what is indented below a line.
function bandsOf({ lines, labels }) {
  const paths = labels.length ? labels.map(modules) : lines.map(() => []);
  if (!labels.length) {
    const depth = lines.map((text) => text.search(/\S/)), open = [];
    lines.forEach((text, at) => {
      while (open.length && depth[at] <= depth[open.at(-1)] && text.trim()) open.pop();
      if (depth[at + 1] > depth[at]) open.push(at);
      paths[at] = open.map((first) => lines[first].trim());
    });
  }
  paths.forEach((own, at) => { if (at && !own.length) paths[at] = paths[at - 1]; });
  const bands = [], most = Math.max(0, ...paths.map((own) => own.length));
  for (let depth = 0; depth < most; depth++) {
    const same = (one, two) => paths[one].slice(0, depth + 1).join("\n") ===
      paths[two].slice(0, depth + 1).join("\n");
    for (let first = 0, end = 0; first < paths.length; first = end) {
      while (end < paths.length && same(first, end)) end++;
      const text = paths[first][depth];
      // What all lines are of says nothing.
      if (text && (first || end < paths.length)) bands.push([depth, first, end, text]);
    }
  }
  const least = Math.min(...bands.map(([depth]) => depth));
  return bands.map(([depth, ...rest]) => [depth - least, ...rest]);
}

// "layers.0.mlp.up gelu" is of layers.0, mlp, up and gelu.
function modules(name) {
  const [place, operator] = name.split(" "), parts = [];
  for (const word of place.split(".")) {
    if (/^\d+$/.test(word) && parts.length) parts.push(`${parts.pop()}.${word}`);
    else if (word) parts.push(word);
  }
  return operator ? [...parts, operator] : parts;
}

class Program {
  constructor(body, rows) { Object.assign(this, { body, rows, elements: new Map() }); }
  show(memory) {
    const { listing } = memory.rows;
    this.memory = memory;
    this.rows.replaceChildren();
    this.elements.clear();
    document.getElementById("program").classList.toggle("ruler", !listing);
    this.bands = listing ? bandsOf(listing) : [];
    this.uses = new Map(); // What each line does to which buffer.
    const note = (line, index, how) => {
      if (line === null) return;
      if (!this.uses.has(line)) this.uses.set(line, new Map());
      const known = this.uses.get(line).get(index) ?? "";
      if (!known.includes(how)) this.uses.get(line).set(index, known + how);
    };
    memory.buffers.forEach((buffer, index) => {
      note(buffer.allocated, index, "A");
      buffer.writes.forEach((line) => note(line, index, "W"));
      buffer.reads.forEach((line) => note(line, index, "R"));
    });
    this.writers = this.bands.filter(([depth]) => !depth)
      .map((band) => [this.bytesWritten(band), ...band]).filter(([bytes]) => bytes)
      .sort((one, two) => two[0] - one[0]).map(([, ...band]) => band);
  }
  bytesWritten([, first, end]) {
    const written = new Set();
    for (let line = first; line < end; line++) {
      this.uses.get(line)?.forEach((how, index) => how.includes("W") && written.add(index));
    }
    const { buffers } = this.memory;
    return [...written].reduce((sum, at) => sum + buffers[at].size * buffers[at].slots, 0);
  }
  isFolded(view) { return !this.memory.rows.listing || view.rowPixels < LEAST_READABLE; }
  draw(view, state) {
    const folded = this.isFolded(view), map = this.body.querySelector("svg");
    this.rows.hidden = folded;
    map.style.display = folded ? "" : "none";
    if (!folded) this.lines(view, state);
    else map.innerHTML = this.content(view, state, this.body.clientWidth, this.body.clientHeight);
  }
  // Numbers of lines or positions, and bands beside them. Deep bands have no room on narrow screens.
  content(view, state, width, height) {
    const parts = [], { listing, begin } = this.memory.rows;
    const add = listing ? 1 : begin, left = listing ? 46 : 0;
    let step = 1;
    while (step * view.rowPixels < 28) step *= [2, 2.5, 2][Math.round(Math.log10(step) * 3) % 3];
    const first = Math.ceil((add + Math.max(0, view.row)) / step) * step;
    for (let at = first; at - add < view.rowAt(height - AXIS); at += step) {
      const text = countText(at), right = listing ? left - 6 : width - 14, y = view.y(at - add);
      parts.push(label(right - widthOf(text), y, text, "var(--faint)"),
        rectangle(right + 3, y, 4, 1, "fill:var(--faint)"));
    }
    const depths = Math.max(1, Math.min(Math.floor((width - left) / BAND),
      1 + Math.max(0, ...this.bands.map(([depth]) => depth))));
    const wide = (width - left) / depths, named = []; // Middles of names of outermost bands.
    this.bands.filter(([depth]) => depth < depths).forEach(([depth, from, end, text], at) => {
      const top = Math.max(AXIS, view.y(from)), bottom = Math.min(view.y(end), height);
      const x = left + depth * wide, high = bottom - top;
      if (high < 4) return;
      const shown = high < 11 ? "" : fitted(text, wide - 8), tone = at % 2 ? "var(--box)" : "var(--band)";
      if (shown && !depth) named.push((top + bottom) / 2);
      parts.push(rectangle(x + 0.5, top + 0.5, wide - 1, high - 1,
        `fill:${tone};stroke:var(--line)`), shown && label(x + 4, (top + bottom) / 2, shown, "var(--ink)"));
    });
    // Many bands are too low for a name: those that write most bytes have theirs where it is free.
    for (const [, from, end, text] of this.writers) {
      const top = view.y(from), bottom = view.y(end), y = (top + bottom) / 2;
      if (bottom - top >= 11 || y < AXIS + 7 || y > height - 7) continue;
      if (named.some((middle) => Math.abs(middle - y) < 14)) continue;
      const shown = fitted(text, wide - 12);
      if (!shown) continue;
      named.push(y);
      parts.push(rectangle(left, y, 4, 1, "fill:var(--faint)"),
        grounded(left + 8, y, shown, "var(--ink)", "var(--paper)"));
    }
    for (const [top, bottom] of state.bands) {
      parts.push(rectangle(0, view.y(top), width, view.y(bottom) - view.y(top),
        "fill:var(--chosen);opacity:.25"));
    }
    return parts.join("");
  }
  lines(view, state) {
    const { lines } = this.memory.rows.listing;
    const first = Math.max(0, Math.floor(view.row) - 2);
    const last = Math.min(lines.length, Math.ceil(view.rowAt(view.height)) + 2);
    for (const [line, element] of this.elements) {
      if (line >= first && line < last) continue;
      element.remove();
      this.elements.delete(line);
    }
    const size = Math.min(Math.max(12, Math.min(16, view.rowPixels * 0.36)), view.rowPixels * 0.72);
    for (let line = first; line < last; line++) {
      const element = this.elements.get(line) ?? this.element(line, lines[line]);
      Object.assign(element.style, {
        top: `${view.y(line)}px`, height: `${view.rowPixels}px`, fontSize: `${size}px`,
        lineHeight: `${Math.min(view.rowPixels, Math.max(22, size * 1.5))}px`,
      });
      this.classes(element, line, state);
    }
  }
  element(line, text) {
    const element = document.createElement("div");
    element.className = this.memory.rows.listing.rules.includes(line) ? "row rule" : "row";
    element.dataset.line = String(line);
    for (const [name, value] of [["no", String(line + 1)], ["mark", ""], ["text", text]]) {
      const part = document.createElement("span");
      part.className = name;
      part.textContent = value;
      element.append(part);
    }
    this.elements.set(line, element);
    this.rows.append(element);
    return element;
  }
  classes(element, line, state) {
    const how = state.focus === null ? "" : this.uses.get(line)?.get(state.focus) ?? "";
    const marks = {
      alive: state.bands.some(([top, bottom]) => line + 1 > top && line < bottom),
      touched: how !== "", chosen: state.line === line, match: state.matchingLines.has(line),
      "at-peak": state.peakLines.has(line),
    };
    for (const [name, is] of Object.entries(marks)) element.classList.toggle(name, is);
    element.children[1].textContent = how || (marks["at-peak"] ? "◂" : "");
  }
}
