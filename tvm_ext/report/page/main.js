// Ties data, drawing and input together.

const byId = (id) => document.getElementById(id);

// What is pointed at, chosen and searched for.
class State {
  constructor(page) {
    this.page = page;
    this.hovered = null;
    this.chosen = null;
    this.line = null;
    this.hoveredLine = null;
    this.matches = [];
    this.matchingLines = new Set();
    this.peakLines = new Set();
  }
  get focus() { return this.hovered ?? this.chosen; }
  // Rows that are marked: those in which the buffer lives, or the line itself.
  get bands() {
    const rows = this.page.memory.rows, index = this.focus;
    if (index !== null) {
      return this.page.memory.buffers[index].live
        .map(([begin, end]) => [rows.top(begin), rows.bottom(end)]);
    }
    const line = this.hoveredLine ?? this.line;
    return line === null ? [] : [[line, line + 1]];
  }
  // Buffers that the line under the pointer, or the chosen one, reads or writes.
  get touched() {
    const line = this.hoveredLine ?? this.line;
    if (line === null || this.hovered !== null || !this.page.memory.rows.listing) return [];
    return [...(this.page.program.uses.get(line)?.keys() ?? [])];
  }
  related(plan) {
    if (this.chosen === null) return [];
    const found = this.page.memory.sharers(this.chosen, plan);
    return [...found.before, ...found.inPlace, ...found.after];
  }
  colouring(plan) {
    return this.page.colours.of(plan, byId("colour").value, this.page.theme);
  }
  // From buffers that the chosen one takes bytes over from, and to those that take them next.
  arrows(plan) {
    if (this.chosen === null) return [];
    const cost = new Map(plan.paid.flatMap(([one, two, paid]) =>
      [[`${one} ${two}`, paid], [`${two} ${one}`, paid]]));
    const arrow = (from, to) => ({ from, to, cost: cost.get(`${from} ${to}`) ?? 0 });
    const { before, after } = this.page.memory.sharers(this.chosen, plan);
    return [...before.map((other) => arrow(other, this.chosen)),
      ...after.map((other) => arrow(this.chosen, other))];
  }
}

const MOST_ROW_ON_PAPER = 14; // Pixels of a line on paper,
const MOST_ON_PAPER = 16000; // and of all lines: browsers draw nothing larger.
const LEAST_SEEN = 12; // Pixels of a box, each way, that can be pointed at.

class Page {
  constructor() {
    this.view = new View();
    this.state = new State(this);
    this.program = new Program(byId("program-body"), byId("rows"), this);
    this.panel = new Panel(this);
    this.drawings = [];
    this.pending = false;
    this.readTheme();
    byId("title").textContent = DATA.title;
    DATA.scopes.forEach((scope, at) => {
      const option = make("option", `${scope.name}${DATA.functions > 1 ? ` of ${scope.function}` : ""}` +
        ` — ${countText(scope.buffers.length)} buffers`);
      option.value = String(at);
      byId("scope").append(option);
    });
    this.showScope(0);
    this.listen();
    this.follow();
  }
  readTheme() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.theme = {
      boxInk: colour("box-ink"), strongInk: colour("strong-ink"),
    };
    for (const name of ["paper", "raised", "ink", "faint", "line", "box", "strong", "chosen", "band",
      "peak", "bound", "capacity", "over", "reserved"]) this.theme[name] = colour(name);
  }
  showScope(at) {
    const isOther = DATA.scopes[at].unit !== each.unit;
    this.memory = new Memory(DATA.scopes[at]);
    byId("scope").value = String(at);
    if (isOther) Object.assign(each, { unit: this.memory.scope.unit, value: null });
    byId("unit-choice").hidden = !each.unit;
    byId("unit-name").textContent = each.unit;
    byId("unit").value = each.value ?? "";
    const { memory, state } = this;
    Object.assign(state, { hovered: null, chosen: null, line: null, hoveredLine: null });
    this.colours = new Colours(memory);
    const colour = byId("colour"), before = colour.value;
    colour.replaceChildren(...this.colours.ways.map(([value, text]) => {
      const option = make("option", text);
      option.value = value;
      return option;
    }));
    if (this.colours.ways.some(([value]) => value === before)) colour.value = before;
    for (const plan of memory.plans) plan.peakRow = memory.rows.top(plan.peakPosition);
    state.peakLines = new Set(memory.rows.listing
      ? memory.plans.flatMap((plan) => plan.peakPlaces)
        .map((at) => memory.rows.listing.lineOf[memory.rows.clamp(at)])
      : []);
    this.heads();
    this.program.show(memory);
    this.panel.peakPlan = 0;
    this.panel.nothing();
    this.panel.peak();
    this.panel.plans();
    this.panel.why();
    this.panel.runs();
    this.panel.left();
    this.widths();
    this.measure();
    // A short program gets taller lines, so that its map is easier to point at.
    const rows = Math.max(18, Math.min(56, this.view.height / memory.rows.total));
    this.view.fit(memory, memory.rows.listing ? rows : null);
    const peak = memory.plans[0].peakRow;
    this.view.reveal(peak - 2, peak + 2);
    this.search();
    this.draw();
  }
  // Gives the program the width that its lines want, and the maps a third of the window at least.
  widths() {
    const { listing } = this.memory.rows, program = byId("program");
    if (program.style.width !== (this.width ?? "")) return; // The reader has chosen another.
    program.style.width = this.width = "";
    if (!listing || window.innerWidth <= 900) return;
    const longest = listing.lines.reduce((most, line) => Math.max(most, line.length), 0);
    const beside = byId("panel").offsetWidth + byId("live").offsetWidth;
    const most = window.innerWidth * 0.66 - beside - 4; // 4: borders
    const wanted = Math.max(window.innerWidth / 4, longest * 7.3 + 110);
    program.style.width = this.width = `${Math.floor(Math.min(wanted, most))}px`;
  }
  heads() {
    const { memory } = this, listing = memory.rows.listing;
    byId("program-head").replaceChildren(
      make("b", listing ? listing.name : "position"),
      make("div", listing ? "A allocates, W writes, R reads the chosen buffer; ◂ peak" : "time", "sub"));
    byId("live-head").textContent = "bytes";
    byId("plans").replaceChildren();
    this.drawings = memory.plans.map((plan) => {
      const column = make("section", "", "plan"), head = make("div", "", "head");
      column.setAttribute("aria-label", `Plan of ${plan.label}`);
      head.append(make("b", plan.label));
      const capacity = memory.scope.capacity;
      const over = capacity !== null && plan.peak > capacity;
      head.append(make("div", `peak ${bytesText(plan.peak)}${eachText()}` +
        (capacity === null ? "" : ` of ${bytesText(capacity)}`), over ? "sub over" : "sub"));
      head.append(make("div", planText(plan), over ? "sub over" : "sub"));
      const body = make("div", "", "body"), canvas = make("canvas");
      body.append(canvas);
      column.append(head, body);
      byId("plans").append(column);
      const drawing = new PlanDrawing(memory, plan, canvas);
      this.listenToPlan(drawing);
      return drawing;
    });
  }
  measure() {
    const canvas = this.drawings[0].canvas;
    this.view.width = canvas.clientWidth;
    this.view.height = canvas.clientHeight - AXIS;
  }
  // Keeps all bytes in sight at another width, if they were.
  resized() {
    const whole = Math.abs(this.view.bytePixels - this.view.leastByte) < 1e-12;
    this.measure();
    this.view.leastByte = Math.max(1, this.view.width - 16) / (this.memory.top * 1.04);
    if (whole) this.view.bytePixels = this.view.leastByte;
    this.draw();
  }
  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.drawNow();
    });
  }
  drawNow() {
    this.view.keep(this.memory);
    for (const drawing of this.drawings) drawing.draw(this.view, this.state, this.theme);
    drawLive(byId("live").querySelector("canvas"), this.memory, this.view, this.theme);
    this.program.draw(this.view, this.state);
  }
  // Takes a value for the dimensions that bytes are multiples of; an empty text takes none.
  chooseUnit(text) {
    const value = Math.floor(Number(text));
    each.value = value >= 1 ? value : null;
    this.heads();
    this.panel.peak();
    this.panel.plans();
    this.facts();
    this.search();
    this.draw();
  }
  // ------------------------------------------------------------------------------ on paper
  // Shows every line before the page is printed, in light colours.
  unfold() {
    const root = document.documentElement, { view, memory } = this;
    this.before = { ...view };
    root.dataset.theme = "light";
    this.readTheme();
    const pixels = Math.min(MOST_ROW_ON_PAPER, MOST_ON_PAPER / memory.rows.total);
    root.style.setProperty("--rows", `${Math.ceil(pixels * memory.rows.total) + AXIS + 8}px`);
    this.measure();
    view.fit(memory);
    Object.assign(view, { row: 0, rowPixels: pixels, leastRow: pixels });
    for (const drawing of this.drawings) drawing.draw(view, this.state, this.theme);
    drawLive(byId("live").querySelector("canvas"), memory, view, this.theme);
    this.program.draw(view, this.state);
  }
  fold() {
    if (!this.before) return;
    const root = document.documentElement;
    delete root.dataset.theme;
    root.style.removeProperty("--rows");
    Object.assign(this.view, this.before);
    this.before = null;
    this.newTheme();
    // The screen's layout may be back a frame later only.
    requestAnimationFrame(() => this.resized());
  }
  // ----------------------------------------------------------------------- links to buffers
  // Shows what the page's address names: a memory, and a buffer of it.
  follow() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const at = Number(asked.get("memory") ?? 0), name = asked.get("buffer");
    if (at > 0 && at < DATA.scopes.length) this.showScope(at);
    const index = name === null ? undefined : this.memory.index.get(name);
    if (index !== undefined && index !== this.state.chosen) this.show(index);
  }
  // Puts the chosen buffer into the page's address, so that a copy of that leads to it.
  remember() {
    const { chosen } = this.state, asked = new URLSearchParams();
    const at = byId("scope").value;
    if (at !== "0") asked.set("memory", at);
    if (chosen !== null) asked.set("buffer", this.memory.buffers[chosen].name);
    const hash = String(asked);
    // A frame without an address of its own, in a notebook, refuses.
    try { history.replaceState(null, "", hash ? `#${hash}` : location.pathname); } catch { /* none */ }
  }
  legend() {
    const way = byId("colour").value, parts = [];
    const plan = this.memory.plans.find((one) => way !== "level" || one.levels) ?? this.memory.plans[0];
    for (const kind of this.state.colouring(plan).classes) {
      if (!kind.label) continue;
      const swatch = make("span", "", "swatch"), part = make("span");
      const turns = { lines: [-45], cross: [-45, 45] }[kind.pattern] ?? [];
      swatch.style.background = [...turns.map((turn) =>
        `repeating-linear-gradient(${turn}deg, #14181d 0 1px, transparent 1px 5px)`), kind.fill].join();
      if (kind.border) swatch.style.border = "2px solid var(--ink)";
      part.append(swatch, kind.label);
      parts.push(part);
    }
    if (this.memory.scope.inPlace.length) {
      parts.push(make("span", "▼ hatched: in place, source and result live together"));
    }
    if (this.memory.plans.some((one) => one.reserved.length)) {
      parts.push(make("span", "hatched right down: reserved"));
    }
    const capacity = this.memory.scope.capacity;
    if (capacity !== null && capacity > this.memory.top) {
      parts.push(make("span", `capacity ${bytesText(capacity)}: to the right of the map`));
    }
    byId("legend").replaceChildren(...parts);
  }
  // ------------------------------------------------------------------------------- choosing
  hover(index, line = null, facts = true) {
    if (this.state.hovered === index && this.state.hoveredLine === line) return;
    this.state.hovered = index;
    this.state.hoveredLine = line;
    if (facts) this.facts();
    this.draw();
  }
  choose(index, reveal = false) {
    this.state.chosen = index;
    this.state.line = null;
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
    const { size, live } = this.memory.buffers[index], { rows } = this.memory;
    const offsets = this.memory.plans[0].offsets[index], [begin, end] = live.at(range);
    return {
      top: rows.top(begin), bottom: rows.bottom(end),
      low: Math.min(...offsets), high: Math.max(...offsets) + Math.max(1, size),
    };
  }
  facts() {
    const { state } = this;
    if (state.focus !== null) this.panel.buffer(state.focus);
    else if (state.hoveredLine !== null) this.panel.line(state.hoveredLine);
    else if (state.line !== null) this.panel.line(state.line);
    else this.panel.nothing();
  }
  goToLine(line) {
    this.state.line = line;
    this.view.reveal(line, line + 1);
    this.draw();
  }
  goToRow(position) {
    const row = this.memory.rows.top(position);
    this.view.row = row - this.view.height / this.view.rowPixels / 2;
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
    const { order, buffers } = this.memory;
    if (!buffers.length) return;
    const at = this.state.chosen === null ? (by > 0 ? -1 : order.length)
      : order.indexOf(this.state.chosen);
    this.choose(order[Math.max(0, Math.min(order.length - 1, at + by))], true);
  }
  stepLine(by) {
    const last = this.memory.rows.total - 1, line = this.state.line;
    this.state.chosen = null;
    const first = Math.max(0, Math.ceil(this.view.row));
    this.goToLine(Math.max(0, Math.min(last, line === null ? first : line + by)));
    this.facts();
  }
  search(next = false) {
    const text = byId("find").value.trim().toLowerCase(), { state, memory } = this;
    const listing = memory.rows.listing;
    state.matches = text === "" ? [] : memory.order.filter((at) =>
      memory.buffers[at].name.toLowerCase().includes(text) ||
      memory.buffers[at].what.toLowerCase().includes(text));
    const lines = text === "" || !listing ? []
      : listing.lines.flatMap((line, at) => (line.toLowerCase().includes(text) ? [at] : []));
    state.matchingLines = new Set(lines);
    this.panel.results(state.matches, lines);
    if (next && state.matches.length) {
      const at = state.matches.indexOf(state.chosen);
      this.show(state.matches[(at + 1) % state.matches.length]);
    }
    this.legend();
    this.draw();
  }
  // --------------------------------------------------------------------------------- input
  listen() {
    new ResizeObserver(() => {
      this.resized();
    }).observe(byId("plans"));
    byId("scope").addEventListener("change", () => this.showScope(Number(byId("scope").value)));
    byId("unit").addEventListener("input", () => this.chooseUnit(byId("unit").value));
    window.addEventListener("hashchange", () => this.follow());
    window.addEventListener("beforeprint", () => this.unfold());
    window.addEventListener("afterprint", () => this.fold());
    window.addEventListener("resize", () => this.widths());
    byId("colour").addEventListener("change", () => { this.legend(); this.draw(); });
    byId("find").addEventListener("input", () => this.search());
    byId("find").addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.search(true);
      if (event.key === "Escape") { byId("find").value = ""; this.search(); byId("plans").focus(); }
      event.stopPropagation();
    });
    byId("to-peak").addEventListener("click", () => this.goToPeak());
    byId("zoom-in").addEventListener("click", () => this.zoom(1.5));
    byId("zoom-out").addEventListener("click", () => this.zoom(1 / 1.5));
    byId("fit").addEventListener("click", () => { this.view.fit(this.memory); this.draw(); });
    byId("help").addEventListener("click", () => byId("keys").showModal());
    window.matchMedia("(prefers-color-scheme: dark)")
      .addEventListener("change", () => this.newTheme());
    document.addEventListener("keydown", (event) => this.key(event));
    this.listenToProgram();
    for (const part of [byId("program-body"), byId("live")]) {
      part.addEventListener("wheel", (event) => this.wheel(event, null), { passive: false });
    }
  }
  newTheme() {
    this.readTheme();
    this.legend();
    this.draw();
  }
  zoom(factor, bytes = false) {
    if (bytes) this.view.zoomBytes(factor, this.view.width / 2);
    else this.view.zoomRows(factor, this.view.height / 2);
    this.draw();
  }
  wheel(event, x) {
    const y = event.offsetY - AXIS, factor = Math.exp(-event.deltaY / 300);
    const pixels = event.deltaMode === 1 ? 18 : 1;
    if (event.ctrlKey || event.metaKey) this.view.zoomRows(factor, Math.max(0, y));
    else if (event.altKey && x !== null) this.view.zoomBytes(factor, x);
    else if (x === null && (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))) return;
    else {
      this.view.row += (event.shiftKey ? 0 : event.deltaY) * pixels / this.view.rowPixels;
      this.view.byte += (event.shiftKey ? event.deltaY : event.deltaX) * pixels / this.view.bytePixels;
    }
    event.preventDefault();
    this.draw();
  }
  listenToPlan(drawing) {
    const { canvas } = drawing;
    let drag = null;
    canvas.addEventListener("wheel", (event) => this.wheel(event, event.offsetX), { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, y: event.clientY, row: this.view.row, byte: this.view.byte, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag) {
        const across = event.clientX - drag.x, down = event.clientY - drag.y;
        drag.moved ||= Math.abs(across) + Math.abs(down) > 4;
        if (drag.moved) {
          this.view.row = drag.row - down / this.view.rowPixels;
          this.view.byte = drag.byte - across / this.view.bytePixels;
          this.draw();
          return;
        }
      }
      const index = drawing.hit(event.offsetX, event.offsetY);
      this.hover(index);
      this.tip(index, drawing.plan, event);
    });
    canvas.addEventListener("pointerup", (event) => {
      const clicked = drag && !drag.moved;
      drag = null;
      if (!clicked) return;
      const index = drawing.hit(event.offsetX, event.offsetY);
      this.choose(index === this.state.chosen ? null : index);
      byId("plans").focus({ preventScroll: true });
    });
    canvas.addEventListener("pointerleave", () => {
      this.hover(null);
      this.tip(null);
    });
    canvas.addEventListener("dblclick", (event) => {
      const index = drawing.hit(event.offsetX, event.offsetY);
      if (index !== null) this.zoomTo(index);
    });
  }
  tip(index, plan = null, event = null) {
    const tip = byId("tip");
    tip.hidden = index === null;
    if (index === null) return;
    const buffer = this.memory.buffers[index], offsets = plan.offsets[index];
    tip.replaceChildren(make("b", buffer.name), make("div",
      `${bytesText(buffer.size)}${offsets.length > 1 ? ` × ${offsets.length} slots` : ""} at ` +
      offsets.map((offset) => countText(scaledBytes(offset))).join(", ")));
    if (buffer.what) tip.append(make("div", buffer.what));
    tip.append(make("div", buffer.live.map(([begin, end]) =>
      `live ${this.memory.rows.name(begin)} to ${this.memory.rows.name(end - 1)}`).join("; ")));
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const top = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${Math.max(0, top)}px`;
  }
  listenToProgram() {
    const lineOf = (event) => {
      const row = event.target.closest(".row");
      return row ? Number(row.dataset.line) : null;
    };
    byId("rows").addEventListener("mousemove", (event) => this.hover(null, lineOf(event)));
    byId("rows").addEventListener("mouseleave", () => this.hover(null));
    byId("rows").addEventListener("click", (event) => {
      const line = lineOf(event);
      this.state.chosen = null;
      this.state.line = this.state.line === line ? null : line;
      this.facts();
      this.draw();
    });
  }
  key(event) {
    const inField = event.target.closest("input, select, dialog");
    if (inField || event.ctrlKey || event.metaKey) return;
    const { view } = this, by = { ArrowUp: -1, ArrowDown: 1, ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const scopes = DATA.scopes.length, scope = Number(byId("scope").value);
    if (event.shiftKey && by) {
      if (event.key === "ArrowUp" || event.key === "ArrowDown") view.row += by * 60 / view.rowPixels;
      else view.byte += by * 60 / view.bytePixels;
      this.draw();
    } else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const inProgram = event.target === byId("program-body") && this.memory.rows.listing;
      if (inProgram) this.stepLine(by);
      else this.step(by);
    }
    else if (event.key === "+" || event.key === "=") this.zoom(1.5, event.altKey);
    else if (event.key === "-") this.zoom(1 / 1.5, event.altKey);
    else if (event.key === "0") { view.fit(this.memory); this.draw(); }
    else if (event.key.toLowerCase() === "p") this.goToPeak();
    else if (event.key.toLowerCase() === "z" && this.state.chosen !== null) this.zoomTo(this.state.chosen);
    else if (event.key === "/") byId("find").focus();
    else if (event.key === "?") byId("keys").showModal();
    else if (event.key === "[" && scope > 0) this.showScope(scope - 1);
    else if (event.key === "]" && scope + 1 < scopes) this.showScope(scope + 1);
    else if (event.key === "Escape") this.choose(null);
    else return;
    event.preventDefault();
  }
}

const page = new Page();
// For scripts that drive the page: what is shown, and where a buffer is on the screen.
window.memoryMap = {
  page,
  locate(name, plan = 0) {
    const drawing = page.drawings[plan], box = drawing.canvas.getBoundingClientRect();
    return drawing.plan.boxes.of[page.memory.index.get(name)].map((at) => {
      const [x, y, width, height] = drawing.frame(at);
      return { x: box.x + x, y: box.y + y, width, height };
    });
  },
};
