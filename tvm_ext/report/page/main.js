// Ties data, drawing and input together.

const byId = (id) => document.getElementById(id);

const MOST_ROW_ON_PAPER = 14; // Pixels of a line on paper,
const MOST_ON_PAPER = 16000; // and of all lines: browsers draw nothing larger.
const LEAST_SEEN = 12; // Pixels of a box, each way, that can be pointed at.

class Page {
  constructor() {
    this.view = { rows: new Span(AXIS), bytes: new Span(4) };
    // Keys, a button for some, what they do; of each there is a line in the dialog.
    this.actions = [
      ["p", "Peak", "go to the peak", () => this.goToPeak()],
      ["+", "+", "zoom in along the program; with Alt along the address", (alt) => this.zoom(1.5, alt)],
      ["-", "−", "zoom out", (alt) => this.zoom(1 / 1.5, alt)],
      ["0", "Fit", "show all", () => this.fit()],
      ["", "SVG", "save what is in sight as a picture of lines", () => this.save("svg")],
      ["", "PNG", "save what is in sight as a picture of dots", () => this.save("png")],
      ["?", "?", "list the keys", () => byId("keys").showModal()],
      ["z", "", "zoom to the chosen buffer", () => this.zoomTo(this.chosen)],
      ["/", "", "find; Enter takes the next match", () => byId("find").focus()],
      ["[", "", "previous memory", () => this.showMemory(this.memory.at - 1)],
      ["]", "", "next memory", () => this.showMemory(this.memory.at + 1)],
      ["Escape", "", "choose nothing", () => this.choose(null)],
    ];
    byId("buttons").innerHTML = this.actions.map(([key, name, what], at) => (name
      ? `<button data-action="${at}" title="${what}${key && ` (${key})`}" aria-label="${what}">${
        name}</button>` : "")).join("");
    byId("key-table").insertAdjacentHTML("beforeend", this.actions.map(([key, , what]) =>
      (key ? `<tr><td>${key}</td><td>${what}</td></tr>` : "")).join(""));
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
  showMemory(at, value = null) {
    if (!DATA.memories[at]) return;
    const { view } = this, memory = new Memory(at, value), { rows } = memory, before = byId("colour").value;
    const { unit, unitName } = DATA.memories[at];
    // What is pointed at, chosen and searched for.
    Object.assign(this, { memory, hovered: null, chosen: null, line: null, hoveredLine: null,
      matches: [], matchingLines: new Set(), ways: waysOf(memory) });
    this.peakLines = new Set(rows.listing
      ? memory.plans.flatMap((plan) => plan.peakPlaces.map((place) => rows.line(place))) : []);
    byId("memory").value = String(at);
    byId("unit-choice").hidden = !unit;
    byId("unit-name").textContent = unitName;
    byId("unit").value = value ?? "";
    this.fill("colour", this.ways);
    if (this.ways.some(([word]) => word === before)) byId("colour").value = before;
    this.heads();
    Object.assign(this, { program: new Program(this, memory), panel: new Panel(this) });
    const lengths = (rows.listing?.lines ?? [""]).map(({ length }) => length).sort((a, b) => a - b);
    const wanted = lengths[Math.floor(lengths.length * 0.8)] * 7.3 + 110;
    byId("program").style.setProperty("--wanted", `${wanted}px`);
    this.measure();
    // A short program gets taller lines, so that its map is easier to point at.
    const pixels = Math.max(LEAST_LINE, Math.min(56, view.rows.length / rows.total));
    view.rows.fill(rows.listing ? pixels : undefined);
    view.bytes.fill();
    const peak = rows.top(memory.plans[0].peakPosition);
    view.rows.reveal(peak - 2, peak + 2, 0);
    this.search();
  }
  heads() {
    const { memory, memory: { rows: { listing }, given: { capacity } } } = this;
    byId("program-head").innerHTML = `<b>${html(listing?.name ?? "position")}</b><div class="sub">${
      listing ? "A allocates, W writes, R reads the chosen buffer; ◂ peak" : "time"}</div>`;
    byId("plans").innerHTML = memory.plans.map((plan) => {
      const over = capacity !== null && plan.peak > capacity ? "sub over" : "sub", said = plan.said.join(" · ");
      return `<section class="plan" aria-label="${escaped(`Plan of ${plan.label}`)}"><div class="head" title="${
        escaped(said)}"><b>${html(plan.label)}</b><div class="${over}">${html(peakText(memory, plan))}</div>` +
        `<div class="${over} status">${html(said)}</div></div><div class="body map"></div></section>`;
    }).join("");
    this.drawings = [...document.querySelectorAll(".map")].map((body, at) =>
      new PlanDrawing(this, memory.plans[at], body));
  }
  measure() {
    const { view: { rows, bytes }, memory: { rows: { total }, top } } = this;
    const { clientWidth: width, clientHeight: height } = this.drawings[0].body;
    const fit = Math.max(20, height - AXIS - 8) / total, wide = Math.max(1, width - 16) / (top * 1.04);
    rows.limit(height - AXIS, total + 2, fit, Math.min(fit, LEAST_LINE), Math.max(80, 400 * fit));
    bytes.limit(width, top * 1.06, wide, wide, width);
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
  // ----------------------------------------------------------------- what is pointed at or chosen
  get focus() { return this.hovered ?? this.chosen; }
  get anyLine() { return this.hoveredLine ?? this.line; }
  get way() { return this.ways.find(([word]) => word === byId("colour").value); }
  // Rows that are marked: those in which the buffer lives, or the line itself.
  get bands() {
    const { focus, anyLine: line } = this;
    return focus === null ? (line === null ? [] : [[line, line + 1]]) : this.memory.lives[focus];
  }
  // Buffers that the line under the pointer, or the chosen one, reads or writes.
  get touched() {
    return this.hovered === null ? [...(this.program.uses.get(this.anyLine)?.keys() ?? [])] : [];
  }
  hover(index, line = null, facts = true) {
    if (this.hovered === index && this.hoveredLine === line) return;
    Object.assign(this, { hovered: index, hoveredLine: line });
    if (facts) this.panel.facts(this.focus, this.anyLine);
    this.draw();
  }
  // Chooses a buffer, a line or nothing, and brings it into sight with so many pixels, if any.
  choose(index, pixels = 0, line = null) {
    const { rows, bytes } = this.view;
    Object.assign(this, { chosen: index, line });
    if (pixels && line !== null) rows.reveal(line, line + 1, 0);
    if (pixels && index !== null) {
      rows.reveal(...this.memory.lives[index][0], pixels);
      bytes.reveal(...this.across(index), pixels);
    }
    this.panel.facts(this.focus, this.anyLine);
    this.remember();
    this.draw();
  }
  // From the first to the last byte of all slots of a buffer in the first plan.
  across(index) {
    const { buffers, plans: [plan] } = this.memory, offsets = plan.offsets[index];
    return [Math.min(...offsets), Math.max(...offsets) + Math.max(1, buffers[index].size)];
  }
  goToRow(position) {
    this.view.rows.centre(this.memory.rows.top(position));
    this.draw();
  }
  goToPeak() { this.goToRow(this.memory.plans[this.panel.peakPlan].peakPosition); }
  zoomTo(index) {
    if (index === null) return;
    const lives = this.memory.lives[index];
    this.view.rows.frame(lives[0][0], lives.at(-1)[1]);
    this.view.bytes.frame(...this.across(index));
    this.choose(index);
  }
  // Goes to another buffer in the order of the program, or to another line.
  step(by, inProgram) {
    const { memory: { order, rows }, view, chosen, line } = this;
    const within = (at, count) => Math.max(0, Math.min(count - 1, at));
    const next = line === null ? Math.ceil(view.rows.from) : line + by;
    if (inProgram) this.choose(null, 1, within(next, rows.total));
    else if (order.length) {
      const at = chosen === null ? (by > 0 ? -1 : order.length) : order.indexOf(chosen);
      this.choose(order[within(at + by, order.length)], 1);
    }
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
      const at = (this.matches.indexOf(this.chosen) + 1) % this.matches.length;
      this.choose(this.matches[at], LEAST_SEEN);
    }
    this.legend();
    this.draw();
  }
  legend() {
    const { plans, top, given: { capacity, inPlace } } = this.memory, [, , classes] = this.way;
    const parts = classes.map(({ fill, pattern, border, label: said }) => {
      const grounds = [fill, pattern && `url(#${pattern})`].map((ground) =>
        rectangle(0, 0, 16, 9, `fill:${ground ?? "none"}`)).join("");
      return `<span class="swatch${border ? " thick" : ""}"><svg width="16" height="9">${
        grounds}</svg></span><span>${html(said)}</span>`;
    });
    const say = (is, text) => { if (is) parts.push(`<span>${text}</span>`); };
    say(inPlace.length, "▼ hatched: in place, source and result live together");
    say(plans.some((one) => one.reserved.length), "hatched right up: reserved");
    say(capacity !== null && capacity > top, `capacity ${bytesText(capacity ?? 0)}: to the right of the map`);
    byId("legend").innerHTML = parts.map((part) => `<div>${part}</div>`).join("");
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
  // What is in sight as the text of an SVG: each drawing and each text beside the panel, in its place.
  picture() {
    const { bottom, right } = byId("plans").getBoundingClientRect(), legend = byId("legend");
    const style = getComputedStyle(document.documentElement), parts = [];
    const add = (element, { left, right: end, bottom: low }) => {
      const { x, y, width, height } = element.getBoundingClientRect(), own = getComputedStyle(element);
      const begin = Math.max(x, left), wide = Math.min(x + width, end) - begin;
      const high = Math.min(y + height, low) - y, { backgroundColor: ground, color, font } = own;
      if (!(wide > 0 && high > 0)) return;
      const text = element.matches(".row") ? "" : element.textContent;
      const inside = element.tagName === "svg" ? element.innerHTML : rectangle(0, 0, width, height,
        `fill:${ground}`) + label(x - begin, height / 2, text, color, font.replaceAll('"', "'"));
      parts.push(`<svg x="${begin}" y="${y}" width="${wide}" height="${high}">${inside}</svg>`);
    };
    legend.style.width = `${right}px`;
    this.measure();
    this.drawNow();
    const { height } = byId("title").getBoundingClientRect(), title = `${DATA.title}: ${this.memory.given.name}`;
    parts.push(label(8, height, title, "var(--ink)", "bold 15px system-ui, 'DejaVu Sans', sans-serif"));
    for (const element of document.querySelectorAll("#legend svg, #legend span:not(.swatch), " +
      "main section .head *, main .row, main .row span, main section svg")) {
      add(element, (element.closest("section") ?? legend).getBoundingClientRect());
    }
    legend.style.width = "";
    this.resized();
    const size = `width="${Math.round(right)}" height="${Math.round(bottom)}"`;
    return (`<svg xmlns="http://www.w3.org/2000/svg" ${size}>${DEFS}` +
      `<rect ${size} style="fill:var(--paper)"/>${parts.join("")}</svg>`)
      .replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
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
    if (at > 0) this.showMemory(at);
    const index = this.memory.index.get(asked.get("buffer"));
    if (index !== undefined && index !== this.chosen) this.choose(index, LEAST_SEEN);
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
    new ResizeObserver(() => this.resized()).observe(byId("plans"));
    on("buttons", "click", ({ target }) => this.actions[target.dataset.action]?.[3](false));
    on("memory", "change", () => this.showMemory(Number(byId("memory").value)));
    on("unit", "input", () => {
      const value = Math.floor(Number(byId("unit").value)), { chosen, memory: { at } } = this;
      this.showMemory(at, value >= 1 ? value : null);
      this.choose(chosen);
    });
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
      if (index !== undefined) this.choose(index, isFound ? LEAST_SEEN : 1);
      else if (line) this.choose(null, 1, Number(line));
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
      this.choose(null, 0, this.line === line ? null : line);
    });
    for (const id of ["program-body", "live-body", "plans"]) {
      on(id, "wheel", (event) => this.wheel(event), { passive: false });
    }
    this.listenToPlans(on);
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
  // The wheel moves a map, or zooms with a key; beside the maps it does so along the program alone.
  wheel(event) {
    const { rows, bytes } = this.view, map = event.target.closest(".map");
    const { left, top } = (map ?? byId("live-body")).getBoundingClientRect();
    const factor = Math.exp(-event.deltaY / 300), pixels = event.deltaMode === 1 ? 18 : 1;
    if (event.ctrlKey || event.metaKey) rows.zoom(factor, Math.max(AXIS, event.clientY - top));
    else if (event.altKey && map) bytes.zoom(factor, event.clientX - left);
    else if (!map && (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))) return;
    else {
      rows.from += (event.shiftKey ? 0 : event.deltaY) * pixels / rows.scale;
      bytes.from += (event.shiftKey ? event.deltaY : event.deltaX) * pixels / bytes.scale;
    }
    event.preventDefault();
    this.draw();
  }
  listenToPlans(on) {
    const { rows, bytes } = this.view;
    let drag = null;
    // The drawing under a pointer, and the buffer there.
    const under = ({ target, clientX, clientY }) => {
      const drawing = this.drawings.find(({ body }) => body === target);
      const { left, top } = target.getBoundingClientRect();
      return [drawing, drawing?.hit(clientX - left, clientY - top) ?? null];
    };
    on("plans", "pointerdown", (event) => {
      if (!under(event)[0]) return;
      drag = { x: event.clientX, y: event.clientY, row: rows.from, byte: bytes.from, moved: false };
      event.target.setPointerCapture(event.pointerId);
    });
    on("plans", "pointermove", (event) => {
      const across = event.clientX - drag?.x, down = event.clientY - drag?.y;
      if (drag && (drag.moved ||= Math.abs(across) + Math.abs(down) > 4)) {
        rows.from = drag.row - down / rows.scale;
        bytes.from = drag.byte - across / bytes.scale;
        this.draw();
        return;
      }
      const [drawing, index] = under(event);
      this.hover(index);
      this.tip(index, drawing?.plan, event);
    });
    on("plans", "pointerup", (event) => {
      const clicked = drag && !drag.moved, [, index] = under(event);
      drag = null;
      if (!clicked) return;
      this.choose(index === this.chosen ? null : index);
      byId("plans").focus({ preventScroll: true });
    });
    on("plans", "pointerleave", () => { this.hover(null); this.tip(null); });
    on("plans", "dblclick", (event) => this.zoomTo(under(event)[1]));
  }
  tip(index, plan, event) {
    const tip = byId("tip");
    tip.hidden = index === null;
    if (index === null) return;
    const { name, size, type, what, live } = this.memory.buffers[index], { rows } = this.memory;
    const offsets = plan.offsets[index], slots = offsets.length > 1 ? ` × ${offsets.length} slots` : "";
    const lives = live.map(([begin, end]) => `live ${rows.name(begin)} to ${rows.name(end - 1)}`);
    tip.innerHTML = `<b>${html(name)}</b>${[`${bytesText(size)}${slots} at ${
      offsets.map(countText).join(", ")}`, type, what, lives.join("; ")].filter(Boolean)
      .map((text) => `<div>${html(text)}</div>`).join("")}`;
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const top = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8);
    Object.assign(tip.style, { left: `${Math.max(0, left)}px`, top: `${Math.max(0, top)}px` });
  }
  key(event) {
    if (event.target.closest?.("input, select, dialog") || event.ctrlKey || event.metaKey) return;
    const by = { ArrowUp: -1, ArrowDown: 1, ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const isUp = event.key === "ArrowUp" || event.key === "ArrowDown";
    const key = event.key === "=" ? "+" : event.key.length > 1 ? event.key : event.key.toLowerCase();
    const action = this.actions.find(([one]) => one === key)?.[3];
    if (by && event.shiftKey) {
      const span = this.view[isUp ? "rows" : "bytes"];
      span.from += by * 60 / span.scale;
      this.draw();
    } else if (isUp) this.step(by, event.target === byId("program-body") && this.memory.rows.listing);
    else if (action) action(event.altKey);
    else return;
    event.preventDefault();
  }
}

window.memoryMap = { page: new Page() }; // For scripts that drive the page.
