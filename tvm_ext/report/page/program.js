// The program's lines beside the map, or the positions where there is no program. Only the lines
// in sight are in the page.

class Program {
  constructor(body, rows, page) {
    Object.assign(this, { body, rows, page, elements: new Map(), memory: null });
  }
  show(memory) {
    this.memory = memory;
    this.rows.replaceChildren();
    this.elements.clear();
    document.getElementById("program").classList.toggle("ruler", !memory.rows.listing);
    if (!memory.rows.listing) return;
    // What each line does to which buffer.
    this.uses = new Map();
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
  }
  draw(view, state) {
    const listing = this.memory.rows.listing;
    const readable = listing && view.rowPixels >= 9;
    this.rows.hidden = listing && !readable;
    if (!listing) this.ruler(view);
    else if (readable) this.lines(view, state);
  }
  lines(view, state) {
    const lines = this.memory.rows.listing.lines;
    const first = Math.max(0, Math.floor(view.row) - 2);
    const last = Math.min(lines.length, Math.ceil(view.rowAt(view.height)) + 2);
    for (const [line, element] of this.elements) {
      if (line < first || line >= last) {
        element.remove();
        this.elements.delete(line);
      }
    }
    const size = Math.min(Math.max(12, Math.min(16, view.rowPixels * 0.36)), view.rowPixels * 0.72);
    for (let line = first; line < last; line++) {
      let element = this.elements.get(line);
      if (!element) {
        element = this.element(line, lines[line]);
        this.elements.set(line, element);
        this.rows.append(element);
      }
      element.style.top = `${view.y(line) + AXIS}px`;
      element.style.height = `${view.rowPixels}px`;
      element.style.lineHeight = `${Math.min(view.rowPixels, Math.max(22, size * 1.5))}px`;
      element.style.fontSize = `${size}px`;
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
    return element;
  }
  classes(element, line, state) {
    const chosen = state.focus, uses = this.uses.get(line);
    const how = chosen === null ? "" : uses?.get(chosen) ?? "";
    const alive = state.bands.some(([top, bottom]) => line + 1 > top && line < bottom);
    element.classList.toggle("alive", alive);
    element.classList.toggle("touched", how !== "");
    element.classList.toggle("chosen", state.line === line);
    element.classList.toggle("match", state.matchingLines.has(line));
    element.classList.toggle("at-peak", state.peakLines.has(line));
    element.children[1].textContent = how || (state.peakLines.has(line) ? "◂" : "");
  }
  ruler(view) {
    this.rows.replaceChildren();
    let step = 1;
    while (step * view.rowPixels < 28) step *= [2, 2.5, 2][Math.round(Math.log10(step) * 3) % 3];
    const begin = this.memory.rows.begin;
    const first = Math.ceil((begin + Math.max(0, view.row)) / step) * step;
    for (let at = first; at - begin < view.rowAt(view.height); at += step) {
      const tick = document.createElement("div");
      tick.className = "tick";
      tick.style.top = `${view.y(at - begin) + AXIS}px`;
      tick.textContent = `${countText(at)} –`;
      this.rows.append(tick);
    }
  }
}
