// Ties data, drawing and input together.

const byId = (id) => document.getElementById(id);

const MOST_ROW_ON_PAPER = 14; // Pixels of a line on paper,
const MOST_ON_PAPER = 16000; // and of all lines: browsers draw nothing larger.
const LEAST_SEEN = 12; // Pixels of a box, each way, that can be pointed at.

class Page {
  constructor() {
    this.view = { rows: new Span(AXIS), bytes: new Span(4) };
    document.body.insertAdjacentHTML("beforeend", `<svg class="defs">${DEFS}</svg>`);
    byId("title").textContent = DATA.title;
    this.fill("memory", DATA.memories.map(({ name, function: owner, buffers }, at) =>
      [at, `${name}${DATA.functions > 1 ? ` of ${owner}` : ""} — ${countText(buffers.length)} buffers`]));
    this.showMemory(0);
    this.listen();
    this.follow();
  }
  // Gives a field of choices its options, [value, text].
  fill(id, options) {
    byId(id).replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  }
  showMemory(at) {
    const { view } = this, memory = new Memory(DATA.memories[at]), { rows } = memory;
    const { unit, unitName } = memory.given, before = byId("colour").value;
    // What is pointed at, chosen and searched for.
    Object.assign(this, { memory, hovered: null, chosen: null, line: null, hoveredLine: null,
      matches: [], matchingLines: new Set() });
    this.peakLines = new Set(rows.listing
      ? memory.plans.flatMap((plan) => plan.peakPlaces.map((place) => rows.line(place))) : []);
    byId("memory").value = String(at);
    if (unit !== each.unit) Object.assign(each, { unit, value: null });
    byId("unit-choice").hidden = !unit;
    byId("unit-name").textContent = unitName;
    byId("unit").value = each.value ?? "";
    this.colours = new Colours(memory);
    this.fill("colour", this.colours.ways);
    if (this.colours.ways.some(([value]) => value === before)) byId("colour").value = before;
    this.heads();
    Object.assign(this, { program: new Program(this, memory), panel: new Panel(this) });
    this.panel.show();
    const lengths = (rows.listing?.lines ?? [""]).map(({ length }) => length).sort((a, b) => a - b);
    const wanted = lengths[Math.floor(lengths.length * 0.8)] * 7.3 + 110;
    byId("program").style.setProperty("--wanted", `${wanted}px`);
    this.measure();
    // A short program gets taller lines, so that its map is easier to point at.
    const pixels = Math.max(LEAST_LINE, Math.min(56, view.rows.length / rows.total));
    view.rows.fill(rows.listing ? pixels : undefined);
    view.bytes.fill();
    view.rows.keep();
    const peak = rows.top(memory.plans[0].peakPosition);
    view.rows.reveal(peak - 2, peak + 2);
    this.search();
  }
  heads() {
    const { memory } = this, { listing } = memory.rows, { capacity } = memory.given;
    byId("program-head").innerHTML = `<b>${html(listing?.name ?? "position")}</b><div class="sub">${
      listing ? "A allocates, W writes, R reads the chosen buffer; ◂ peak" : "time"}</div>`;
    byId("plans").innerHTML = memory.plans.map((plan) => {
      const over = capacity !== null && plan.peak > capacity ? "sub over" : "sub";
      return `<section class="plan" aria-label="${escaped(`Plan of ${plan.label}`)}"><div class="head">` +
        `<b>${html(plan.label)}</b><div class="${over}">${html(peakText(memory, plan))}</div>` +
        `<div class="${over} status">${html(planText(plan))}</div></div><div class="body map"></div></section>`;
    }).join("");
    this.drawings = memory.plans.map((plan, at) =>
      new PlanDrawing(this, plan, document.querySelectorAll(".map")[at]));
    this.drawings.forEach((drawing) => this.listenToPlan(drawing));
  }
  measure() {
    const { view: { rows, bytes }, memory } = this, { body } = this.drawings[0];
    const { clientWidth: width, clientHeight: height } = body;
    const fit = Math.max(20, height - AXIS - 8) / memory.rows.total;
    rows.limit(height - AXIS, memory.rows.total + 2, fit, Math.max(80, 400 * fit));
    const wide = Math.max(1, width - 16) / (memory.top * 1.04);
    bytes.limit(width, memory.top * 1.06, wide, width);
    bytes.least = wide;
  }
  // Keeps all bytes in sight at another width, if they were.
  resized() {
    const { bytes } = this.view, whole = bytes.scale === bytes.fit;
    this.measure();
    if (whole) bytes.fill();
    this.draw();
  }
  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      Object.values(this.view).forEach((span) => span.keep());
      this.drawNow();
    });
  }
  drawNow() {
    const { view, memory } = this, live = byId("live-body");
    for (const drawing of this.drawings) drawing.draw();
    live.firstChild.innerHTML = liveBytes(memory, view, live.clientWidth, live.clientHeight);
    this.program.draw(view);
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
  // ----------------------------------------------------------------- what is pointed at or chosen
  get focus() { return this.hovered ?? this.chosen; }
  get anyLine() { return this.hoveredLine ?? this.line; }
  // Rows that are marked: those in which the buffer lives, or the line itself.
  get bands() {
    const { rows, buffers } = this.memory, line = this.anyLine;
    if (this.focus === null) return line === null ? [] : [[line, line + 1]];
    return buffers[this.focus].live.map(([begin, end]) => [rows.top(begin), rows.bottom(end)]);
  }
  // Buffers that the line under the pointer, or the chosen one, reads or writes.
  get touched() {
    return this.hovered === null ? [...(this.program.uses.get(this.anyLine)?.keys() ?? [])] : [];
  }
  // Buffers that share bytes with the chosen one.
  sharers(plan) {
    return this.chosen === null ? { before: [], after: [] } : this.memory.sharers(this.chosen, plan);
  }
  colouring(plan) { return this.colours.of(plan, byId("colour").value); }
  hover(index, line = null, facts = true) {
    if (this.hovered === index && this.hoveredLine === line) return;
    Object.assign(this, { hovered: index, hoveredLine: line });
    if (facts) this.facts();
    this.draw();
  }
  choose(index, reveal = false) {
    Object.assign(this, { chosen: index, line: null });
    if (reveal && index !== null) {
      const { top, bottom, low, high } = this.extent(index, 0);
      this.view.rows.reveal(top, bottom);
      this.view.bytes.reveal(low, high);
    }
    this.facts();
    this.remember();
    this.draw();
  }
  // Chooses a buffer and zooms to it where it is too small to be seen.
  show(index) {
    const { top, bottom, low, high } = this.extent(index, 0), { rows, bytes } = this.view;
    rows.scale = Math.max(rows.scale, LEAST_SEEN / (bottom - top));
    bytes.scale = Math.max(bytes.scale, LEAST_SEEN / (high - low));
    rows.keep();
    bytes.keep();
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
    const { focus, anyLine } = this;
    if (focus !== null) this.panel.buffer(focus);
    else if (anyLine !== null) this.panel.line(anyLine);
    else this.panel.nothing();
  }
  goToLine(line) {
    this.line = line;
    this.view.rows.reveal(line, line + 1);
    this.facts();
    this.draw();
  }
  goToRow(position) {
    this.view.rows.centre(this.memory.rows.top(position));
    this.draw();
  }
  goToPeak() { this.goToRow(this.memory.plans[this.panel.peakPlan].peakPosition); }
  zoomTo(index) {
    const { rows, bytes } = this.view, { top, low, high } = this.extent(index, 0);
    const { bottom } = this.extent(index, -1);
    for (const [span, from, to] of [[rows, top, bottom], [bytes, low, high]]) {
      span.scale = span.length / ((to - from) * 1.6);
      span.keep();
      span.centre(from, to);
    }
    this.choose(index);
  }
  step(by) {
    const { memory: { order }, chosen } = this;
    const at = chosen === null ? (by > 0 ? -1 : order.length) : order.indexOf(chosen);
    if (order.length) this.choose(order[Math.max(0, Math.min(order.length - 1, at + by))], true);
  }
  stepLine(by) {
    const next = this.line === null ? Math.ceil(this.view.rows.from) : this.line + by;
    this.chosen = null;
    this.goToLine(Math.max(0, Math.min(this.memory.rows.total - 1, next)));
  }
  search(next = false) {
    const text = byId("find").value.trim().toLowerCase(), { memory } = this;
    const has = (whole) => text !== "" && whole.toLowerCase().includes(text);
    this.matches = memory.order.filter((at) => {
      const { name, what, type } = memory.buffers[at];
      return [name, what, type].some(has);
    });
    const lines = (memory.rows.listing?.lines ?? []).flatMap((line, at) => (has(line) ? [at] : []));
    this.matchingLines = new Set(lines);
    this.panel.results(this.matches, lines);
    if (next && this.matches.length) {
      this.show(this.matches[(this.matches.indexOf(this.chosen) + 1) % this.matches.length]);
    }
    this.legend();
    this.draw();
  }
  legend() {
    const { plans, top, given: { capacity, inPlace } } = this.memory, way = byId("colour").value;
    const plan = plans.find((one) => way !== "level" || one.levels) ?? plans[0];
    const parts = this.colouring(plan).classes.map(({ fill, pattern, border, label: said }) => {
      const grounds = [fill, pattern && `url(#${pattern})`].map((ground) =>
        rectangle(0, 0, 16, 9, `fill:${ground ?? "none"}`)).join("");
      return `<span><span class="swatch${border ? " thick" : ""}"><svg width="16" height="9">${
        grounds}</svg></span>${html(said)}</span>`;
    });
    const say = (is, text) => { if (is) parts.push(`<span>${text}</span>`); };
    say(inPlace.length, "▼ hatched: in place, source and result live together");
    say(plans.some((one) => one.reserved.length), "hatched right up: reserved");
    say(capacity !== null && capacity > top, `capacity ${bytesText(capacity)}: to the right of the map`);
    byId("legend").innerHTML = parts.join("");
  }
  // ---------------------------------------------------------------- on paper, and as a picture
  // Shows every line before the page is printed, in light colours.
  unfold() {
    const { documentElement: root } = document, { rows, bytes } = this.view, { total } = this.memory.rows;
    this.before = [{ ...rows }, { ...bytes }];
    root.dataset.theme = "light";
    const pixels = Math.min(MOST_ROW_ON_PAPER, MOST_ON_PAPER / total);
    root.style.setProperty("--rows", `${Math.ceil(pixels * total) + AXIS + 8}px`);
    this.measure();
    rows.fill(pixels);
    bytes.fill();
    this.drawNow();
  }
  fold() {
    if (!this.before) return;
    delete document.documentElement.dataset.theme;
    document.documentElement.style.removeProperty("--rows");
    [this.view.rows, this.view.bytes].forEach((span, at) => Object.assign(span, this.before[at]));
    this.before = null;
    // The screen's layout may be back a frame later only.
    requestAnimationFrame(() => this.resized());
  }
  // What is in sight as the text of an SVG: the program, the plans beside it, titles and a legend.
  picture() {
    const { view, memory, program } = this, height = view.rows.length + AXIS, top = 74;
    const wide = byId("rows").hidden ? Math.max(92, byId("program-body").clientWidth) : 0;
    const parts = [], styles = getComputedStyle(document.documentElement), ink = "var(--ink)";
    const part = (x, y, width, high, content) => parts.push(
      `<svg x="${x}" y="${y}" width="${width}" height="${high}">${content}</svg>`);
    parts.push(label(8, 16, `${DATA.title}: ${memory.given.name}`, ink, "font-weight:bold"));
    if (wide) part(0, top, wide, height, program.content(view, wide, height));
    let x = wide;
    for (const drawing of this.drawings) {
      const { plan, body: { clientWidth: width } } = drawing;
      part(x, 28, width - 8, top - 28, label(4, 8, plan.label, ink, "font-weight:bold") +
        label(4, 23, peakText(memory, plan), ink) + label(4, 38, planText(plan), "var(--faint)"));
      part(x, top, width, height, drawing.content(width, height));
      x += width;
    }
    let [left, y] = [8, top + height + 14];
    for (const { label: said, fill: colour, pattern } of this.colouring(memory.plans[0]).classes) {
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
    const asked = new URLSearchParams(location.hash.slice(1)), at = Number(asked.get("memory") ?? 0);
    if (at > 0 && at < DATA.memories.length) this.showMemory(at);
    const index = this.memory.index.get(asked.get("buffer"));
    if (index !== undefined && index !== this.chosen) this.show(index);
  }
  // Puts the chosen buffer into the page's address, so that a copy of that leads to it.
  remember() {
    const { chosen } = this, asked = new URLSearchParams(), at = byId("memory").value;
    if (at !== "0") asked.set("memory", at);
    if (chosen !== null) asked.set("buffer", this.memory.buffers[chosen].name);
    const hash = String(asked);
    // A frame without an address of its own, in a notebook, refuses.
    try { history.replaceState(null, "", hash ? `#${hash}` : location.pathname); } catch { /* none */ }
  }
  // --------------------------------------------------------------------------------- input
  listen() {
    const on = (id, events, action, more) => events.split(" ")
      .forEach((event) => byId(id).addEventListener(event, action, more));
    const click = { "to-peak": () => this.goToPeak(), "zoom-in": () => this.zoom(1.5),
      "zoom-out": () => this.zoom(1 / 1.5), fit: () => this.fit(), "save-svg": () => this.save("svg"),
      "save-png": () => this.save("png"), help: () => byId("keys").showModal() };
    for (const [id, action] of Object.entries(click)) on(id, "click", action);
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
    // The panel: what an element leads to stands in it.
    on("peak", "change", ({ target }) => {
      this.panel.peakPlan = Number(target.value);
      this.panel.peak();
    }, true);
    on("panel", "click keydown", (event) => {
      const { buffer, line, at } = event.target.closest("[tabindex]")?.dataset ?? {};
      if (event.type === "keydown" && event.key !== "Enter") return;
      const index = this.memory.index.get(buffer), isFound = event.target.closest("#results");
      if (index !== undefined) isFound ? this.show(index) : this.choose(index, true);
      else if (line) this.goToLine(Number(line));
      else if (at) this.goToRow(Number(at));
    });
    on("panel", "mouseover mouseleave", ({ type, target }) => {
      const name = type === "mouseover" && target.closest("[data-buffer]")?.dataset.buffer;
      // Other facts above it would push it away from under the pointer.
      this.hover(this.memory.index.get(name) ?? null, null, false);
    });
    const lineOf = (event) => {
      const { rows } = this.memory, top = byId("program-body").getBoundingClientRect().top;
      const at = Math.floor(this.view.rows.at(event.clientY - top));
      return rows.listing ? Math.max(0, Math.min(rows.total - 1, at)) : null;
    };
    on("program-body", "mousemove", (event) => this.hover(null, lineOf(event)));
    on("program-body", "mouseleave", () => this.hover(null));
    on("program-body", "click", (event) => {
      const line = lineOf(event);
      Object.assign(this, { chosen: null, line: this.line === line ? null : line });
      this.facts();
      this.draw();
    });
    for (const id of ["program-body", "live-body"]) {
      on(id, "wheel", (event) => this.wheel(event, null), { passive: false });
    }
    for (const [event, action] of Object.entries({
      hashchange: () => this.follow(), beforeprint: () => this.unfold(),
      afterprint: () => this.fold(), keydown: (event) => this.key(event),
    })) window.addEventListener(event, action);
  }
  fit() {
    Object.values(this.view).forEach((span) => span.fill());
    this.draw();
  }
  zoom(factor, bytes = false) {
    this.view[bytes ? "bytes" : "rows"].zoom(factor);
    this.draw();
  }
  // The wheel moves a map, or zooms with a key; x is null beside the maps.
  wheel(event, x) {
    const { rows, bytes } = this.view, top = byId("live-body").getBoundingClientRect().top;
    const factor = Math.exp(-event.deltaY / 300), pixels = event.deltaMode === 1 ? 18 : 1;
    if (event.ctrlKey || event.metaKey) rows.zoom(factor, Math.max(AXIS, event.clientY - top));
    else if (event.altKey && x !== null) bytes.zoom(factor, x);
    else if (x === null && (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))) return;
    else {
      rows.from += (event.shiftKey ? 0 : event.deltaY) * pixels / rows.scale;
      bytes.from += (event.shiftKey ? event.deltaY : event.deltaX) * pixels / bytes.scale;
    }
    event.preventDefault();
    this.draw();
  }
  listenToPlan(drawing) {
    const { body } = drawing, { rows, bytes } = this.view;
    const on = (event, action, more) => body.addEventListener(event, action, more);
    let drag = null;
    const place = (event) => {
      const { left, top } = body.getBoundingClientRect();
      return [event.clientX - left, event.clientY - top];
    };
    on("wheel", (event) => this.wheel(event, place(event)[0]), { passive: false });
    on("pointerdown", (event) => {
      drag = { x: event.clientX, y: event.clientY, row: rows.from, byte: bytes.from, moved: false };
      body.setPointerCapture(event.pointerId);
    });
    on("pointermove", (event) => {
      if (drag) {
        const across = event.clientX - drag.x, down = event.clientY - drag.y;
        drag.moved ||= Math.abs(across) + Math.abs(down) > 4;
        if (drag.moved) {
          rows.from = drag.row - down / rows.scale;
          bytes.from = drag.byte - across / bytes.scale;
          this.draw();
          return;
        }
      }
      const index = drawing.hit(...place(event));
      this.hover(index);
      this.tip(index, drawing.plan, event);
    });
    on("pointerup", (event) => {
      const clicked = drag && !drag.moved, index = drawing.hit(...place(event));
      drag = null;
      if (!clicked) return;
      this.choose(index === this.chosen ? null : index);
      byId("plans").focus({ preventScroll: true });
    });
    on("pointerleave", () => { this.hover(null); this.tip(null); });
    on("dblclick", (event) => {
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
    tip.innerHTML = `<b>${html(name)}</b>${[`${bytesText(size)}${slots} at ${at}`, type, what,
      lives.join("; ")].filter(Boolean).map((text) => `<div>${html(text)}</div>`).join("")}`;
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const top = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8);
    Object.assign(tip.style, { left: `${Math.max(0, left)}px`, top: `${Math.max(0, top)}px` });
  }
  key(event) {
    if (event.target.closest?.("input, select, dialog") || event.ctrlKey || event.metaKey) return;
    const { rows, bytes } = this.view, memory = Number(byId("memory").value);
    const by = { ArrowUp: -1, ArrowDown: 1, ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const isUp = event.key === "ArrowUp" || event.key === "ArrowDown";
    const inProgram = event.target === byId("program-body") && this.memory.rows.listing;
    const keys = {
      "+": () => this.zoom(1.5, event.altKey), "=": () => this.zoom(1.5, event.altKey),
      "-": () => this.zoom(1 / 1.5, event.altKey), p: () => this.goToPeak(), 0: () => this.fit(),
      z: () => { if (this.chosen !== null) this.zoomTo(this.chosen); },
      "/": () => byId("find").focus(), "?": () => byId("keys").showModal(),
      "[": () => { if (memory > 0) this.showMemory(memory - 1); },
      "]": () => { if (memory + 1 < DATA.memories.length) this.showMemory(memory + 1); },
      escape: () => this.choose(null),
    };
    const action = keys[event.key.toLowerCase()];
    if (by && event.shiftKey) {
      const span = isUp ? rows : bytes;
      span.from += by * 60 / span.scale;
      this.draw();
    } else if (isUp) inProgram ? this.stepLine(by) : this.step(by);
    else if (action) action();
    else return;
    event.preventDefault();
  }
}

window.memoryMap = { page: new Page() }; // For scripts that drive the page.
