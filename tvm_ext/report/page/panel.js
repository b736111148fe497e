// The panel on the right, in HTML: what is chosen, what the peak is made of, the plans as a table.
// What leads somewhere when it is clicked says where: data-buffer, data-line, or data-at a position.

// Names may break between their words.
function html(text) {
  return String(text).split(/(?<=[_./:])(?![\d\s]|$)|(?<=[a-z])(?=[A-Z][a-z])/).map(escaped)
    .join("<wbr>");
}

function link(kind, value, text) {
  return `<a tabindex="0" class="to-${kind}" data-${kind}="${escaped(String(value))}">${
    html(text)}</a>`;
}

const heading = (text) => `<h2>${html(text)}</h2>`;
const note = (text) => `<p class="note">${html(text)}</p>`;
const td = (inside, more = "") => `<td ${more}>${inside}</td>`;
const number = (text, title = "") =>
  td(html(text), `class="number"${title && ` title="${escaped(title)}"`}`);
const bar = (part, whole, className = "bar") => `<div class="${className}" style="width:${
  Math.min(100, (100 * part) / Math.max(1, whole))}%"></div>`;

function table(head, rows, id = "") {
  const names = head.map((text, at) => `<th class="${at ? "number" : "first"}">${html(text)}</th>`);
  const lines = [...(head.length ? [names.join("")] : []), ...rows];
  return `<table id="${id}">${lines.map((cells) =>
    (cells.startsWith("<tr") ? cells : `<tr>${cells}</tr>`)).join("")}</table>`;
}

// A table of facts, [name, HTML]; those without a value are left out.
function factsOf(rows) {
  return table([], rows.filter(([, value]) => value !== "")
    .map(([name, value]) => `<th>${html(name)}</th>${td(value)}`));
}

// The first of some links.
function some(links, most = 12) {
  const more = links.length > most ? ` and ${countText(links.length - most)} more` : "";
  return links.slice(0, most).join(", ") + more;
}

const STATUS = {
  optimal: "optimal: proven", feasible: "fits", infeasible: "proven not to fit",
  "not found": "does not fit",
};

const FEW_LEFT = 12, MOST_LEFT = 500; // Lines of what is not planned.

function planText(plan) {
  return [STATUS[plan.status], plan.remark, plan.penalty ? `penalty ${countText(plan.penalty)}` : "",
    plan.makespan === null ? "" : `${countText(plan.makespan)} cycles`].filter(Boolean).join(" · ");
}

function peakText({ given: { capacity } }, plan) {
  return `peak ${bytesText(plan.peak)}${eachText()}` +
    (capacity === null ? "" : ` of ${bytesText(capacity)}`);
}

class Panel {
  constructor(page) { Object.assign(this, { page, memory: page.memory, peakPlan: 0 }); }
  put(id, ...parts) { byId(id).innerHTML = parts.join(""); }
  // All that is of the memory as a whole.
  show() {
    this.nothing();
    this.peak();
    this.plans();
    this.why();
    this.runs();
    this.left();
  }
  links(indices) {
    return some(indices.map((at) => this.buffers[at].name).map((name) => link("buffer", name, name)));
  }
  get buffers() { return this.memory.buffers; }
  lines(numbers) { return some(numbers.map((line) => link("line", line, line + 1)), 10); }
  // Positions by their rows, as links.
  places(positions) { return positions.map((at) => link("at", at, this.memory.rows.name(at))); }
  // ------------------------------------------------------------------------------ one buffer
  buffer(index) {
    const buffer = this.buffers[index], { rows, given } = this.memory;
    const ranges = buffer.live.map(([begin, end]) => {
      const positions = `positions ${begin} to ${end - 1}`;
      return rows.listing
        ? `lines ${rows.line(begin) + 1} to ${rows.line(end - 1) + 1} (${positions})` : positions;
    });
    const pairs = given.inPlace.filter((pair) => pair.includes(index));
    this.put("facts", heading(buffer.name), factsOf([
      ["size", exactText(buffer.size) + (buffer.slots > 1 ? " a slot" : "")],
      ["type", html(buffer.type)],
      ["slots", buffer.slots > 1 ? String(buffer.slots) : ""],
      ["what", html(buffer.what)],
      ["alignment", `${buffer.alignment} B`],
      ["live", ranges.join("; ")],
      ["allocated", buffer.allocated === null ? "" : this.lines([buffer.allocated])],
      ["written", this.lines(buffer.writes)],
      ["read", this.lines(buffer.reads)],
      ["pipes", html(buffer.pipes.join(", "))],
      ["pinned at", buffer.pinned?.join(", ") ?? ""],
      ["may go in place with", this.links(pairs.map(([one, two]) => (one === index ? two : one)))],
    ]), ...this.memory.plans.map((plan) => this.inPlan(index, plan)));
  }
  inPlan(index, plan) {
    const { size } = this.buffers[index], offsets = plan.offsets[index];
    const sharers = this.memory.sharers(index, plan), [level, reason] = plan.levels?.[index] ?? [];
    const each = (text) => offsets.map(scaledBytes).map(text).join(", ") + eachText();
    const costs = plan.paid.filter(([one, two]) => one === index || two === index).slice(0, 12);
    const live = plan.peakLive.includes(index);
    return heading(`In the plan of ${plan.label}`) + factsOf([
      [offsets.length > 1 ? "offsets" : "offset",
        each((offset) => `${countText(offset)} (0x${offset.toString(16)})`)],
      ["ends at", each((offset) => countText(offset + scaledBytes(size)))],
      ["reuse level", level === undefined ? "" : reason ? html(`${level}: it ${reason}`) : String(level)],
      ["takes bytes of", this.links(sharers.before)],
      ["in place with", this.links(sharers.inPlace)],
      ["leaves bytes to", this.links(sharers.after)],
      ...costs.map(([one, two, cost]) => ["sharing costs",
        `${countText(cost)} with ${this.links([one === index ? two : one])}`]),
      ["live at the peak", live
        ? `yes, ${shareText(this.memory.bytesOf(index, plan), plan.peak)} of the peak` : "no"],
    ]);
  }
  // --------------------------------------------------------------------------- several buffers
  nothing() {
    const line = this.memory.rows.listing ? " or at a line" : "";
    this.put("facts", note(`Point at a buffer${line}; click to keep it.`));
  }
  line(line) {
    const plan = this.memory.plans[this.peakPlan], live = this.memory.liveIn(line, line + 1);
    this.put("facts", heading(`Live at line ${line + 1}`),
      live.length ? this.list(live, plan) : note("nothing"));
  }
  list(indices, plan, most = 60, id = "", last = []) {
    const whole = plan.peak, sum = (all) => all.reduce((n, at) => n + this.memory.bytesOf(at, plan), 0);
    const rows = indices.slice(0, most).map((index) => {
      const { name, label: short, size, type } = this.buffers[index];
      const bytes = sum([index]), slots = plan.offsets[index].length;
      const more = (type && `<div class="note">${html(type)}</div>`) + bar(bytes, whole);
      return `<tr class="can" tabindex="0" data-buffer="${escaped(name)}" title="${escaped(name)}">` +
        td(html(short || name) + more, 'class="name"') + number((slots > 1 ? `${slots} × ` : "") +
        bytesText(size), `${countText(bytes)} bytes`) + number(shareText(bytes, whole)) + "</tr>";
    });
    const rest = indices.slice(most), noted = [...last];
    if (rest.length) noted.unshift([`${countText(rest.length)} more`, sum(rest), ""]);
    return table(["buffer", "bytes", "share"], [...rows, ...noted.map(([text, bytes, more]) =>
      td(text + more, 'class="note"') + number(bytesText(bytes)) + number(shareText(bytes, whole)))], id);
  }
  peak() {
    const { plans, rows } = this.memory, plan = plans[this.peakPlan];
    const choices = plans.map((one, at) =>
      `<option value="${at}"${at === this.peakPlan ? " selected" : ""}>${escaped(one.label)}</option>`);
    const gap = plan.peak - plan.peakOccupied, unused = "not used at that moment";
    const double = plan.peakLive.reduce((sum, at) => sum + this.memory.bytesOf(at, plan), 0) -
      plan.peakOccupied;
    this.put("peak", heading("What the peak is made of"),
      plans.length > 1 ? `<select aria-label="Plan whose peak is shown">${choices.join("")}</select>` : "",
      this.reached(plan), `<p>${countText(plan.peakLive.length)} buffers live at ${
        rows.name(plan.peakPosition)}, largest first:</p>`,
      this.list(plan.peakLive, plan, 60, "peak-list",
        gap > 0 ? [[unused, gap, bar(gap, plan.peak, "bar gap")]] : []),
      double > 0 ? note(`${exactText(double)} of these are shared in place.`) : "");
  }
  // Where the peak is reached: what is mended at one place saves nothing while there is another.
  reached({ peak, peakPlaces, remark, below }) {
    const { rows } = this.memory, first = new Map();
    for (const at of peakPlaces) if (!first.has(rows.name(at))) first.set(rows.name(at), at);
    const count = first.size, sum = remark
      ? " are the sum of the allocations. Most bytes are in use at " : " at ";
    const elsewhere = below === null ? "" : ` Elsewhere at most ${exactText(below[0])} are in use, at ${
      this.places([below[1]])}.`;
    return `<p>${exactText(peak)}${sum}${count > 1 ? `${countText(count)} places: ` : ""}${
      some(this.places([...first.values()]), 8)}${count > 1
      ? ". A lower peak has to save bytes at each of them." : ", and nowhere else."}${elsewhere}</p>`;
  }
  plans() {
    const { given: { bound, capacity, form }, plans, buffers } = this.memory;
    const rows = plans.flatMap((plan) => [td(html(plan.label), 'class="name"') +
      number(bytesText(plan.peak), `${countText(plan.peak)} bytes`) +
      number(bound ? (plan.peak / bound).toFixed(3) : ""), td(note(planText(plan)), 'colspan="3"')]);
    const sum = buffers.reduce((all, one) => all + one.size * one.slots, 0);
    for (const [name, bytes] of [["lower bound", bound], ["capacity", capacity],
      ["sum of all buffers", sum]]) if (bytes !== null) rows.push(td(name) + number(bytesText(bytes)));
    this.put("table", heading("Plans"), table(["plan", `peak${eachText() && ", for each"}`, "÷ bound"],
      rows, "plan-table"), form && note(form));
  }
  why() {
    this.put("why", ...this.memory.plans.filter((one) => one.why).map((plan) =>
      heading(`Why the plan of ${plan.label} does not fit`) + plan.why.split("\n").map((line) => {
        const text = line.trimStart();
        return `<p class="${line.length - text.length > 2 ? "deep" : ""}">${this.said(text)}</p>`;
      }).join("")));
  }
  // A line of a message: names of buffers as links, long numbers with separators.
  said(text) {
    const { index } = this.memory, first = /^(.+?): \d+ bytes/.exec(text)?.[1];
    const begin = index.has(first) ? first : "";
    return (begin && link("buffer", begin, begin)) + text.slice(begin.length).split(/('[^']*')/)
      .map((part) => {
        const name = part.slice(1, -1);
        if (part.startsWith("'")) return index.has(name) ? link("buffer", name, name) : escaped(part);
        return escaped(part.replace(/(?<![\w.([])\d{4,}(?![\w.)])/g, (digits) => countText(digits)));
      }).join("");
  }
  runs() {
    const runs = DATA.runs.filter((run) => run.function === this.memory.given.function);
    this.put("runs", runs.length ? heading("Pipelines in simulation") : "",
      ...runs.map(({ label: planner, makespan, pipes, waits }) =>
        `<p>${html(planner)}: ${countText(makespan)} cycles</p>` + table(["pipe", "busy", "idle"],
          pipes.map(([pipe, ...times]) => td(html(pipe)) +
            times.map((time) => number(shareText(time, makespan))).join(""))) + (waits.length
          ? note("Longest waits for bytes that another buffer uses:") + table(["wait", "cycles"],
            waits.map(([pipe, buffer, other, cycles]) =>
              td(html(`${pipe}: ${buffer} after ${other}`)) + number(countText(cycles)))) : "")));
  }
  left() {
    const { left, notes } = DATA, more = left.slice(FEW_LEFT, MOST_LEFT).map(note);
    const rest = left.length - MOST_LEFT;
    if (rest > 0) more.push(note(`and ${countText(rest)} more`));
    this.put("left", notes.length ? heading("Notes") : "", ...notes.map(note),
      left.length ? heading(`Not planned: ${countText(left.length)}`) : "",
      ...left.slice(0, FEW_LEFT).map(note), more.length ? `<details><summary>${
        countText(left.length - FEW_LEFT)} more</summary>${more.join("")}</details>` : "");
  }
  results(indices, lines) {
    this.put("results", indices.length ? heading(`Found ${countText(indices.length)}`) +
      this.list(indices, this.memory.plans[0], 20) : "",
    lines.length ? factsOf([["lines", this.lines(lines)]]) : "");
  }
}
