// Ties data, drawing and input together.

const byId = (id) => document.getElementById(id);

// What is pointed at, chosen and searched for.
class State {
  constructor(page) {
    Object.assign(this, { page, matches: [], matchingLines: new Set(), peakLines: new Set() });
    this.clear();
  }
  clear() { Object.assign(this, { hovered: null, chosen: null, line: null, hoveredLine: null }); }
  get focus() { return this.hovered ?? this.chosen; }
  get anyLine() { return this.hoveredLine ?? this.line; }
  // Rows that are marked: those in which the buffer lives, or the line itself.
  get bands() {
    const { rows, buffers } = this.page.memory, line = this.anyLine;
    if (this.focus === null) return line === null ? [] : [[line, line + 1]];
    return buffers[this.focus].live.map(([begin, end]) => [rows.top(begin), rows.bottom(end)]);
  }
  // Buffers that the line under the pointer, or the chosen one, reads or writes.
  get touched() {
    if (this.anyLine === null || this.hovered !== null) return [];
    return [...(this.page.program.uses.get(this.anyLine)?.keys() ?? [])];
  }
  related(plan) {
    if (this.chosen === null) return [];
    return Object.values(this.page.memory.sharers(this.chosen, plan)).flat();
  }
  colouring(plan) { return this.page.colours.of(plan, byId("colour").value); }
  // From buffers that the chosen one takes bytes over from, and to those that take them next.
  arrows(plan) {
    if (this.chosen === null) return [];
    const { before, after } = this.page.memory.sharers(this.chosen, plan);
    const cost = (other) => plan.paid.find(([one, two]) => [one, two].includes(other) &&
      [one, two].includes(this.chosen))?.[2] ?? 0;
    return [...before.map((from) => ({ from, to: this.chosen, cost: cost(from) })),
      ...after.map((to) => ({ from: this.chosen, to, cost: cost(to) }))];
  }
}

const MOST_ROW_ON_PAPER = 14; // Pixels of a line on paper,
const MOST_ON_PAPER = 16000; // and of all lines: browsers draw nothing larger.
const LEAST_SEEN = 12; // Pixels of a box, each way, that can be pointed at.

class Page {
  constructor() {
    this.view = new View();
    this.state = new State(this);
    this.program = new Program(byId("program-body"), byId("rows"));
    this.panel = new Panel(this);
    this.drawings = [];
    document.body.insertAdjacentHTML("beforeend", `<svg class="defs">${DEFS}</svg>`);
    byId("title").textContent = DATA.title;
    fill(byId("memory"), DATA.memories.map(({ name, function: owner, buffers }, at) =>
      [at, `${name}${DATA.functions > 1 ? ` of ${owner}` : ""} — ${countText(buffers.length)} buffers`]));
    this.showMemory(0);
    this.listen();
    this.follow();
  }
  showMemory(at) {
    const { view, state } = this, memory = new Memory(DATA.memories[at]), { rows } = memory;
    const { unit, unitName } = memory.given;
    this.memory = memory;
    byId("memory").value = String(at);
    if (unit !== each.unit) Object.assign(each, { unit, value: null });
    byId("unit-choice").hidden = !unit;
    byId("unit-name").textContent = unitName;
    byId("unit").value = each.value ?? "";
    state.clear();
    this.colours = new Colours(memory);
    const colour = byId("colour"), before = colour.value;
    fill(colour, this.colours.ways);
    if (this.colours.ways.some(([value]) => value === before)) colour.value = before;
    state.peakLines = new Set(rows.listing
      ? memory.plans.flatMap((plan) => plan.peakPlaces.map((place) => rows.line(place))) : []);
    this.heads();
    this.program.show(memory);
    this.panel.show();
    this.widths();
    this.measure();
    // A short program gets taller lines, so that its map is easier to point at.
    const pixels = Math.max(LEAST_LINE, Math.min(56, view.height / rows.total));
    view.fit(memory, rows.listing ? pixels : null);
    view.reveal(memory.plans[0].peakRow - 2, memory.plans[0].peakRow + 2);
    this.search();
  }
  // Gives the program the width that most of its lines want, and the maps a third of the window.
  widths() {
    const { listing } = this.memory.rows, { style } = byId("program");
    if (style.width !== (this.width ?? "")) return; // The reader has chosen another.
    style.width = this.width = "";
    if (!listing || window.innerWidth <= 900) return;
    const lengths = listing.lines.map(({ length }) => length).sort((one, two) => one - two);
    const beside = byId("panel").offsetWidth + byId("live").offsetWidth;
    const most = window.innerWidth * Math.min(0.66, 0.45 + 400 / window.innerWidth) - beside - 4;
    const wanted = Math.max(window.innerWidth / 4, lengths[Math.floor(lengths.length * 0.8)] * 7.3 + 110);
    style.width = this.width = `${Math.floor(Math.min(wanted, most))}px`;
  }
  heads() {
    const { memory } = this, { listing } = memory.rows, { capacity } = memory.given;
    byId("program-head").replaceChildren(
      make("b", listing ? listing.name : "position"),
      make("div", listing ? "A allocates, W writes, R reads the chosen buffer; ◂ peak" : "time", "sub"));
    byId("plans").replaceChildren();
    this.drawings = memory.plans.map((plan) => {
      const column = make("section", "", "plan"), head = make("div", "", "head");
      column.setAttribute("aria-label", `Plan of ${plan.label}`);
      const over = capacity !== null && plan.peak > capacity ? "sub over" : "sub";
      head.append(make("b", plan.label), make("div", peakText(memory, plan), over),
        make("div", planText(plan), `${over} status`));
      const body = make("div", "", "body map");
      column.append(head, body);
      byId("plans").append(column);
      const drawing = new PlanDrawing(memory, plan, body);
      this.listenToPlan(drawing);
      return drawing;
    });
  }
  measure() {
    const { body } = this.drawings[0];
    this.view.width = body.clientWidth;
    this.view.height = body.clientHeight - AXIS;
  }
  // Keeps all bytes in sight at another width, if they were.
  resized() {
    const whole = Math.abs(this.view.bytePixels - this.view.leastByte) < 1e-12;
    const { bytePixels } = this.view;
    this.measure();
    this.view.fitBytes(this.memory);
    if (!whole) this.view.bytePixels = bytePixels;
    this.draw();
  }
  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.view.keep(this.memory);
      this.drawNow();
    });
  }
  drawNow() {
    const { view, state, memory } = this, live = byId("live-body");
    for (const drawing of this.drawings) drawing.draw(view, state);
    live.firstChild.innerHTML = liveBytes(memory, view, live.clientWidth, live.clientHeight);
    this.program.draw(view, state);
  }
  // Takes a value for the dimensions that bytes are multiples of; an empty text takes none.
  chooseUnit(text) {
    const value = Math.floor(Number(text));
    each.value = value >= 1 ? value : null;
    this.heads();
    this.panel.show();
    this.facts();
    this.search();
  }
  // ---------------------------------------------------------------- on paper, and as a picture
  // Shows every line before the page is printed, in light colours.
  unfold() {
    const root = document.documentElement, { view, memory } = this;
    this.before = { ...view };
    root.dataset.theme = "light";
    const pixels = Math.min(MOST_ROW_ON_PAPER, MOST_ON_PAPER / memory.rows.total);
    root.style.setProperty("--rows", `${Math.ceil(pixels * memory.rows.total) + AXIS + 8}px`);
    this.measure();
    view.fit(memory);
    Object.assign(view, { row: 0, rowPixels: pixels, leastRow: pixels });
    this.drawNow();
  }
  fold() {
    if (!this.before) return;
    const root = document.documentElement;
    delete root.dataset.theme;
    root.style.removeProperty("--rows");
    Object.assign(this.view, this.before);
    this.before = null;
    // The screen's layout may be back a frame later only.
    requestAnimationFrame(() => this.resized());
  }
  // What is in sight as the text of an SVG: the program, the plans beside it, titles and a legend.
  picture() {
    const { view, state, memory, program } = this, height = view.height + AXIS, top = 74;
    const wide = program.isFolded(view) ? Math.max(92, program.body.clientWidth) : 0;
    const parts = [], styles = getComputedStyle(document.documentElement), ink = "var(--ink)";
    const part = (x, y, width, high, content) => parts.push(
      `<svg x="${x}" y="${y}" width="${width}" height="${high}">${content}</svg>`);
    parts.push(label(8, 16, `${DATA.title}: ${memory.given.name}`, ink, "font-weight:bold"));
    if (wide) part(0, top, wide, height, program.content(view, state, wide, height));
    let x = wide;
    for (const drawing of this.drawings) {
      const { plan, body: { clientWidth: width } } = drawing;
      part(x, 28, width - 8, top - 28, label(4, 8, plan.label, ink, "font-weight:bold") +
        label(4, 23, peakText(memory, plan), ink) + label(4, 38, planText(plan), "var(--faint)"));
      part(x, top, width, height, drawing.content(view, state, width, height));
      x += width;
    }
    let [left, y] = [8, top + height + 14];
    for (const { label: said, fill: colour, pattern } of state.colouring(memory.plans[0]).classes) {
      const room = widthOf(said) + 40;
      if (left + room > x) [left, y] = [8, y + 18];
      for (const ground of [colour, ...(pattern ? [`url(#${pattern})`] : [])]) {
        parts.push(rectangle(left, y - 6, 18, 11, `stroke:var(--faint);fill:${ground}`));
      }
      parts.push(label(left + 23, y, said, "var(--faint)"));
      left += room;
    }
    const size = `width="${x}" height="${y + 14}"`;
    return (`<svg xmlns="http://www.w3.org/2000/svg" ${size}>${DEFS}` +
      `<rect ${size} style="fill:var(--paper)"/>${parts.join("")}</svg>`)
      .replace(/var\((--[\w-]+)\)/g, (_, name) => styles.getPropertyValue(name).trim());
  }
  async save(kind) {
    const link = document.createElement("a");
    let url = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(this.picture())}`;
    if (kind === "png") {
      const image = new Image(), canvas = document.createElement("canvas");
      image.src = url;
      await image.decode();
      Object.assign(canvas, { width: 2 * image.width, height: 2 * image.height });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      url = canvas.toDataURL();
    }
    Object.assign(link, { href: url, download: `${DATA.title.replace(/[^\w.-]+/g, "_")}.${kind}` });
    link.click();
  }
  // ----------------------------------------------------------------------- links to buffers
  // Shows what the page's address names: a memory, and a buffer of it.
  follow() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const at = Number(asked.get("memory") ?? 0), name = asked.get("buffer");
    if (at > 0 && at < DATA.memories.length) this.showMemory(at);
    const index = this.memory.index.get(name);
    if (index !== undefined && index !== this.state.chosen) this.show(index);
  }
  // Puts the chosen buffer into the page's address, so that a copy of that leads to it.
  remember() {
    const { chosen } = this.state, asked = new URLSearchParams(), at = byId("memory").value;
    if (at !== "0") asked.set("memory", at);
    if (chosen !== null) asked.set("buffer", this.memory.buffers[chosen].name);
    const hash = String(asked);
    // A frame without an address of its own, in a notebook, refuses.
    try { history.replaceState(null, "", hash ? `#${hash}` : location.pathname); } catch { /* none */ }
  }
  legend() {
    const { memory } = this, { capacity } = memory.given, way = byId("colour").value;
    const plan = memory.plans.find((one) => way !== "level" || one.levels) ?? memory.plans[0];
    const parts = this.state.colouring(plan).classes.map((one) => {
      const swatch = make("span", "", "swatch"), part = make("span");
      swatch.innerHTML = `<svg width="16" height="9">${[one.fill, one.pattern && `url(#${one.pattern})`]
        .map((ground) => rectangle(0, 0, 16, 9, `fill:${ground ?? "none"}`)).join("")}</svg>`;
      if (one.border) swatch.style.border = "2px solid var(--ink)";
      part.append(swatch, one.label);
      return part;
    });
    const say = (is, text) => { if (is) parts.push(make("span", text)); };
    say(memory.given.inPlace.length, "▼ hatched: in place, source and result live together");
    say(memory.plans.some((one) => one.reserved.length), "hatched right up: reserved");
    say(capacity !== null && capacity > memory.top,
      `capacity ${bytesText(capacity)}: to the right of the map`);
    byId("legend").replaceChildren(...parts);
  }
  // ------------------------------------------------------------------------------- choosing
  hover(index, line = null, facts = true) {
    if (this.state.hovered === index && this.state.hoveredLine === line) return;
    Object.assign(this.state, { hovered: index, hoveredLine: line });
    if (facts) this.facts();
    this.draw();
  }
  choose(index, reveal = false) {
    Object.assign(this.state, { chosen: index, line: null });
    if (reveal && index !== null) {
      const { top, bottom, low, high } = this.extent(index, 0);
      this.view.reveal(top, bottom);
      this.view.revealBytes(low, high);
    }
    this.facts();
    this.remember();
    this.draw();
  }
  // Chooses a buffer and zooms to it where it is too small to be seen.
  show(index) {
    const { top, bottom, low, high } = this.extent(index, 0), { view } = this;
    view.rowPixels = Math.max(view.rowPixels, LEAST_SEEN / (bottom - top));
    view.bytePixels = Math.max(view.bytePixels, LEAST_SEEN / (high - low));
    view.keep(this.memory);
    this.choose(index, true);
  }
  // Where a live range of a buffer is in the first plan: rows, and bytes of all slots.
  extent(index, range) {
    const { buffers, rows, plans: [plan] } = this.memory, offsets = plan.offsets[index];
    const { size, live } = buffers[index], [begin, end] = live.at(range);
    return {
      top: rows.top(begin), bottom: rows.bottom(end),
      low: Math.min(...offsets), high: Math.max(...offsets) + Math.max(1, size),
    };
  }
  facts() {
    const { focus, anyLine } = this.state;
    if (focus !== null) this.panel.buffer(focus);
    else if (anyLine !== null) this.panel.line(anyLine);
    else this.panel.nothing();
  }
  goToLine(line) {
    this.state.line = line;
    this.view.reveal(line, line + 1);
    this.facts();
    this.draw();
  }
  goToRow(position) {
    this.view.row = this.memory.rows.top(position) - this.view.height / this.view.rowPixels / 2;
    this.draw();
  }
  goToPeak() { this.goToRow(this.memory.plans[this.panel.peakPlan].peakPosition); }
  zoomTo(index) {
    const { view } = this, { top, low, high } = this.extent(index, 0);
    const { bottom } = this.extent(index, -1);
    view.rowPixels = view.height / ((bottom - top) * 1.6);
    view.bytePixels = view.width / ((high - low) * 1.6);
    view.keep(this.memory);
    view.row = (top + bottom) / 2 - view.height / view.rowPixels / 2;
    view.byte = (low + high) / 2 - view.width / view.bytePixels / 2;
    this.choose(index);
  }
  step(by) {
    const { order } = this.memory, { chosen } = this.state;
    if (!order.length) return;
    const at = chosen === null ? (by > 0 ? -1 : order.length) : order.indexOf(chosen);
    this.choose(order[Math.max(0, Math.min(order.length - 1, at + by))], true);
  }
  stepLine(by) {
    const last = this.memory.rows.total - 1, { line } = this.state;
    this.state.chosen = null;
    const next = line === null ? Math.max(0, Math.ceil(this.view.row)) : line + by;
    this.goToLine(Math.max(0, Math.min(last, next)));
  }
  search(next = false) {
    const text = byId("find").value.trim().toLowerCase(), { state, memory } = this;
    const has = (whole) => text !== "" && whole.toLowerCase().includes(text);
    state.matches = memory.order.filter((at) => {
      const { name, what, type } = memory.buffers[at];
      return [name, what, type].some(has);
    });
    const lines = (memory.rows.listing?.lines ?? []).flatMap((line, at) => (has(line) ? [at] : []));
    state.matchingLines = new Set(lines);
    this.panel.results(state.matches, lines);
    if (next && state.matches.length) {
      this.show(state.matches[(state.matches.indexOf(state.chosen) + 1) % state.matches.length]);
    }
    this.legend();
    this.draw();
  }
  // --------------------------------------------------------------------------------- input
  listen() {
    const on = (id, event, action) => byId(id).addEventListener(event, action);
    new ResizeObserver(() => this.resized()).observe(byId("plans"));
    on("memory", "change", () => this.showMemory(Number(byId("memory").value)));
    on("unit", "input", () => this.chooseUnit(byId("unit").value));
    on("colour", "change", () => { this.legend(); this.draw(); });
    on("find", "input", () => this.search());
    on("find", "keydown", (event) => {
      if (event.key === "Enter") this.search(true);
      if (event.key === "Escape") { byId("find").value = ""; this.search(); byId("plans").focus(); }
      event.stopPropagation();
    });
    on("to-peak", "click", () => this.goToPeak());
    on("zoom-in", "click", () => this.zoom(1.5));
    on("zoom-out", "click", () => this.zoom(1 / 1.5));
    on("fit", "click", () => { this.view.fit(this.memory); this.draw(); });
    on("save-svg", "click", () => this.save("svg"));
    on("save-png", "click", () => this.save("png"));
    on("help", "click", () => byId("keys").showModal());
    const lineOf = (event) => {
      const row = event.target.closest(".row"), { rows } = this.memory;
      if (row || !rows.listing) return row ? Number(row.dataset.line) : null;
      const at = event.clientY - byId("program-body").getBoundingClientRect().top - AXIS;
      return Math.max(0, Math.min(rows.total - 1, Math.floor(this.view.rowAt(at))));
    };
    on("program-body", "mousemove", (event) => this.hover(null, lineOf(event)));
    on("program-body", "mouseleave", () => this.hover(null));
    on("program-body", "click", (event) => {
      const line = lineOf(event);
      Object.assign(this.state, { chosen: null, line: this.state.line === line ? null : line });
      this.facts();
      this.draw();
    });
    for (const id of ["program-body", "live-body"]) {
      byId(id).addEventListener("wheel", (event) => this.wheel(event, null), { passive: false });
    }
    for (const [event, action] of Object.entries({
      hashchange: () => this.follow(), beforeprint: () => this.unfold(),
      afterprint: () => this.fold(), resize: () => this.widths(), keydown: (event) => this.key(event),
    })) window.addEventListener(event, action);
  }
  zoom(factor, bytes = false) {
    if (bytes) this.view.zoomBytes(factor, this.view.width / 2);
    else this.view.zoomRows(factor, this.view.height / 2);
    this.draw();
  }
  // The wheel moves a map, or zooms with a key; x is null beside the maps.
  wheel(event, x) {
    const { view } = this, y = event.clientY - byId("live-body").getBoundingClientRect().top - AXIS;
    const factor = Math.exp(-event.deltaY / 300), pixels = event.deltaMode === 1 ? 18 : 1;
    if (event.ctrlKey || event.metaKey) view.zoomRows(factor, Math.max(0, y));
    else if (event.altKey && x !== null) view.zoomBytes(factor, x);
    else if (x === null && (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))) return;
    else {
      view.row += (event.shiftKey ? 0 : event.deltaY) * pixels / view.rowPixels;
      view.byte += (event.shiftKey ? event.deltaY : event.deltaX) * pixels / view.bytePixels;
    }
    event.preventDefault();
    this.draw();
  }
  listenToPlan(drawing) {
    const { body } = drawing, { view } = this;
    let drag = null;
    const place = (event) => {
      const { left, top } = body.getBoundingClientRect();
      return [event.clientX - left, event.clientY - top];
    };
    body.addEventListener("wheel", (event) => this.wheel(event, place(event)[0]), { passive: false });
    body.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, y: event.clientY, row: view.row, byte: view.byte, moved: false };
      body.setPointerCapture(event.pointerId);
    });
    body.addEventListener("pointermove", (event) => {
      if (drag) {
        const across = event.clientX - drag.x, down = event.clientY - drag.y;
        drag.moved ||= Math.abs(across) + Math.abs(down) > 4;
        if (drag.moved) {
          view.row = drag.row - down / view.rowPixels;
          view.byte = drag.byte - across / view.bytePixels;
          this.draw();
          return;
        }
      }
      const index = drawing.hit(...place(event));
      this.hover(index);
      this.tip(index, drawing.plan, event);
    });
    body.addEventListener("pointerup", (event) => {
      const clicked = drag && !drag.moved, index = drawing.hit(...place(event));
      drag = null;
      if (!clicked) return;
      this.choose(index === this.state.chosen ? null : index);
      byId("plans").focus({ preventScroll: true });
    });
    body.addEventListener("pointerleave", () => { this.hover(null); this.tip(null); });
    body.addEventListener("dblclick", (event) => {
      const index = drawing.hit(...place(event));
      if (index !== null) this.zoomTo(index);
    });
  }
  tip(index, plan = null, event = null) {
    const tip = byId("tip");
    tip.hidden = index === null;
    if (index === null) return;
    const { name, size, type, what, live } = this.memory.buffers[index], { rows } = this.memory;
    const offsets = plan.offsets[index], slots = offsets.length > 1 ? ` × ${offsets.length} slots` : "";
    const at = offsets.map((offset) => countText(scaledBytes(offset))).join(", ");
    const lives = live.map(([begin, end]) => `live ${rows.name(begin)} to ${rows.name(end - 1)}`);
    tip.replaceChildren(make("b", name), ...[`${bytesText(size)}${slots} at ${at}`, type, what,
      lives.join("; ")].filter(Boolean).map((text) => make("div", text)));
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const top = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8);
    Object.assign(tip.style, { left: `${Math.max(0, left)}px`, top: `${Math.max(0, top)}px` });
  }
  key(event) {
    if (event.target.closest?.("input, select, dialog") || event.ctrlKey || event.metaKey) return;
    const { view } = this, memory = Number(byId("memory").value);
    const by = { ArrowUp: -1, ArrowDown: 1, ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const isUp = event.key === "ArrowUp" || event.key === "ArrowDown";
    const inProgram = event.target === byId("program-body") && this.memory.rows.listing;
    const keys = {
      "+": () => this.zoom(1.5, event.altKey), "=": () => this.zoom(1.5, event.altKey),
      "-": () => this.zoom(1 / 1.5, event.altKey), p: () => this.goToPeak(),
      0: () => { view.fit(this.memory); this.draw(); },
      z: () => { if (this.state.chosen !== null) this.zoomTo(this.state.chosen); },
      "/": () => byId("find").focus(), "?": () => byId("keys").showModal(),
      "[": () => { if (memory > 0) this.showMemory(memory - 1); },
      "]": () => { if (memory + 1 < DATA.memories.length) this.showMemory(memory + 1); },
      escape: () => this.choose(null),
    };
    const action = keys[event.key.toLowerCase()];
    if (by && event.shiftKey) {
      if (isUp) view.row += by * 60 / view.rowPixels;
      else view.byte += by * 60 / view.bytePixels;
      this.draw();
    } else if (isUp) inProgram ? this.stepLine(by) : this.step(by);
    else if (action) action();
    else return;
    event.preventDefault();
  }
}

const page = new Page();
// For scripts that drive the page: what is shown, and where a buffer is on the screen.
window.memoryMap = {
  page,
  locate(name, plan = 0) {
    const drawing = page.drawings[plan], around = drawing.body.getBoundingClientRect();
    return drawing.plan.boxes.of[page.memory.index.get(name)].map((box) => {
      const [x, y, width, height] = drawing.frame(box);
      return { x: around.x + x, y: around.y + y, width, height };
    });
  },
};
