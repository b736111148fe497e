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
    const begin = paths.map((own) => own.slice(0, depth + 1).join("\n"));
    for (let first = 0, end = 0; first < paths.length; first = end) {
      while (end < paths.length && begin[end] === begin[first]) end++;
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
  constructor(page, memory) {
    const { listing } = memory.rows;
    Object.assign(this, { page, memory, bands: listing ? bandsOf(listing) : [] });
    this.uses = new Map(); // What each line does to which buffer.
    memory.buffers.forEach(({ allocated, writes, reads }, index) => {
      const all = { A: allocated === null ? [] : [allocated], W: writes, R: reads };
      for (const [how, lines] of Object.entries(all)) {
        for (const line of lines) {
          const of = this.uses.get(line) ?? new Map(), known = of.get(index) ?? "";
          this.uses.set(line, of.set(index, known.includes(how) ? known : known + how));
        }
      }
    });
    const written = ([, first, end]) => memory.buffers.reduce((sum, { size, slots, writes }) =>
      sum + (writes.some((line) => line >= first && line < end) ? size * slots : 0), 0);
    this.writers = this.bands.filter(([depth]) => !depth).map((band) => [written(band), band])
      .filter(([bytes]) => bytes).sort((one, two) => two[0] - one[0]).map(([, band]) => band);
    byId("program").classList.toggle("ruler", !listing);
  }
  draw(view) {
    const rows = byId("rows"), body = byId("program-body"), map = body.querySelector("svg");
    const folded = !this.memory.rows.listing || view.rows.scale < LEAST_READABLE;
    rows.hidden = folded;
    map.style.display = folded ? "" : "none";
    if (folded) map.innerHTML = this.content(view, body.clientWidth, body.clientHeight);
    this.lines(view, rows, folded);
  }
  // Numbers of lines or positions, and bands beside them. Deep bands have no room on narrow screens.
  content({ rows }, width, height) {
    const parts = [], { listing, begin } = this.memory.rows, { scale } = rows;
    const add = listing ? 1 : begin, left = listing ? 46 : 0;
    let step = 1;
    while (step * scale < 28) step *= [2, 2.5, 2][Math.round(Math.log10(step) * 3) % 3];
    const first = Math.ceil((add + Math.max(0, rows.from)) / step) * step;
    for (let at = first; at - add < rows.at(height); at += step) {
      const text = countText(at), right = listing ? left - 6 : width - 14, y = rows.pixel(at - add);
      parts.push(label(right - widthOf(text), y, text, "var(--faint)"),
        rectangle(right + 3, y, 4, 1, "fill:var(--faint)"));
    }
    const depths = Math.max(1, Math.min(Math.floor((width - left) / BAND),
      1 + Math.max(0, ...this.bands.map(([depth]) => depth))));
    const wide = (width - left) / depths, named = []; // Middles of names of outermost bands.
    this.bands.filter(([depth]) => depth < depths).forEach(([depth, from, end, text], at) => {
      const top = Math.max(AXIS, rows.pixel(from)), bottom = Math.min(rows.pixel(end), height);
      const x = left + depth * wide, high = bottom - top;
      if (high < 4) return;
      const shown = high < 11 ? "" : fitted(text, wide - 8), tone = at % 2 ? "var(--box)" : "var(--band)";
      if (shown && !depth) named.push((top + bottom) / 2);
      parts.push(rectangle(x + 0.5, top + 0.5, wide - 1, high - 1,
        `fill:${tone};stroke:var(--line)`), shown && label(x + 4, (top + bottom) / 2, shown, "var(--ink)"));
    });
    // Many bands are too low for a name: those that write most bytes have theirs where it is free.
    for (const [, from, end, text] of this.writers) {
      const y = rows.pixel((from + end) / 2), shown = fitted(text, wide - 12);
      const taken = named.some((middle) => Math.abs(middle - y) < 14);
      if ((end - from) * scale >= 11 || y < AXIS + 7 || y > height - 7 || taken || !shown) continue;
      named.push(y);
      parts.push(rectangle(left, y, 4, 1, "fill:var(--faint)"),
        grounded(left + 8, y, shown, "var(--ink)", "var(--paper)"));
    }
    for (const [top, bottom] of this.page.bands) {
      parts.push(rectangle(0, rows.pixel(top), width, (bottom - top) * scale,
        "fill:var(--chosen);opacity:.25"));
    }
    return parts.join("");
  }
  // Lines are made anew when others are in sight, and else keep what a reader has marked in them.
  lines({ rows }, element, folded) {
    const { lines, rules } = this.memory.rows.listing ?? { lines: [] }, { scale } = rows, made = [];
    const last = folded ? 0 : Math.min(lines.length, Math.ceil(rows.from + rows.shown) + 2);
    const size = Math.min(Math.max(12, Math.min(16, scale * 0.36)), scale * 0.72);
    const style = `height:${scale}px;font-size:${size}px;line-height:${
      Math.min(scale, Math.max(22, size * 1.5))}px`;
    for (let at = Math.max(0, Math.floor(rows.from) - 2); at < last; at++) {
      made.push(`<div data-line="${at}" style="top:${rows.pixel(at)}px;${style}"><span class="no">${
        at + 1}</span><span class="mark"></span><span class="text">${escaped(lines[at])}</span></div>`);
    }
    const html = made.join("");
    if (html !== this.made) element.innerHTML = this.made = html;
    for (const row of element.children) this.mark(row, Number(row.dataset.line), rules);
  }
  mark(row, line, rules) {
    const { page } = this, how = this.uses.get(line)?.get(page.focus) ?? "";
    const marks = {
      row: true, rule: rules.includes(line), touched: how !== "", chosen: page.line === line,
      alive: page.bands.some(([top, bottom]) => line + 1 > top && line < bottom),
      match: page.matchingLines.has(line), "at-peak": page.peakLines.has(line),
    };
    row.className = Object.keys(marks).filter((name) => marks[name]).join(" ");
    row.children[1].textContent = how || (marks["at-peak"] ? "◂" : "");
  }
}
