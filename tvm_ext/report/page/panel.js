// The panel on the right, in HTML: what is chosen, what the peak is made of, the plans as a table.
// What leads somewhere when it is clicked says where: data-buffer, data-line, or data-at a position.

// Names may break between their words.
function html(text) {
  return String(text).split(/(?<=[_./:])(?![\d\s]|$)|(?<=[a-z])(?=[A-Z][a-z])/).map(escaped)
    .join("<wbr>");
}

function link(kind, value, text = value) {
  return `<a tabindex="0" class="to-${kind}" data-${kind}="${escaped(String(value))}">${
    html(text)}</a>`;
}

const heading = (text) => `<h2>${html(text)}</h2>`;
const note = (text) => `<p class="note">${html(text)}</p>`;
const td = (inside, more = "") => `<td ${more}>${inside}</td>`;
const number = (text, title = "") =>
  td(html(text), `class="number"${title && ` title="${escaped(title)}"`}`);
const bytes = (value) => number(bytesText(value), `${countText(value)} bytes`);
const bar = (part, whole, className = "bar") => `<div class="${className}" style="width:${
  Math.min(100, (100 * part) / Math.max(1, whole))}%"></div>`;

function table(head, rows, id = "") {
  const names = head.map((text, at) => `<th class="${at ? "number" : "first"}">${html(text)}</th>`);
  return `<table id="${id}">${[names.join(""), ...rows].filter(Boolean).map((cells) =>
    (cells.startsWith("<tr") ? cells : `<tr>${cells}</tr>`)).join("")}</table>`;
}

// A table of facts, by name in HTML; those without a value are left out.
function factsOf(facts) {
  return table([], facts.filter(([, value]) => value).map(([name, value]) =>
    `<th>${html(name)}</th>${td(value)}`));
}

// The first of some links.
function some(links, most = 12) {
  const more = links.length > most ? ` and ${countText(links.length - most)} more` : "";
  return links.slice(0, most).join(", ") + more;
}

const FEW_LEFT = 12, MOST_LEFT = 500; // Lines of what is not planned.

function peakText({ given: { capacity }, each }, plan) {
  return `peak ${bytesText(plan.peak)}${each}` +
    (capacity === null ? "" : ` of ${bytesText(capacity)}`);
}

class Panel {
  constructor(page) {
    Object.assign(this, { page, memory: page.memory, buffers: page.memory.buffers, peakPlan: 0 });
    this.facts(null, null);
    this.peak();
    this.plans();
    this.why();
    this.runs();
    this.left();
  }
  put(id, ...parts) { byId(id).innerHTML = parts.join(""); }
  links(indices) { return some(indices.map((at) => link("buffer", this.buffers[at].name))); }
  lines(numbers) { return some(numbers.map((line) => link("line", line, line + 1)), 10); }
  // Positions by their rows, as links.
  places(positions) { return positions.map((at) => link("at", at, this.memory.rows.name(at))); }
  // ------------------------------------------------------------------ a buffer, a line, or nothing
  facts(index, line) {
    const { memory: { order, plans, rows }, buffers } = this, plan = plans[this.peakPlan];
    if (index !== null) this.put("facts", ...this.buffer(index, buffers[index]));
    else if (line !== null) {
      const live = order.filter((at) => this.memory.lives[at]
        .some(([top, bottom]) => top < line + 1 && bottom > line));
      const size = (at) => this.memory.bytesOf(at, plans[0]);
      this.put("facts", heading(`Live at line ${line + 1}`), live.length
        ? this.list(live.sort((a, b) => size(b) - size(a) || a - b), plan) : note("nothing"));
    } else {
      this.put("facts", note(`Point at a buffer${rows.listing ? " or at a line" : ""}; click to keep it.`));
    }
  }
  buffer(index, { name, size, slots, type, what, alignment, live, allocated, writes, reads, pipes, pinned }) {
    const { rows, given, each } = this.memory, ranges = live.map(([begin, end]) => {
      const positions = `positions ${begin} to ${end - 1}`;
      return rows.listing
        ? `lines ${rows.line(begin) + 1} to ${rows.line(end - 1) + 1} (${positions})` : positions;
    });
    const pairs = given.inPlace.filter((pair) => pair.includes(index));
    return [heading(name), factsOf([
      ["size", exactText(size) + each + (slots > 1 ? " a slot" : "")],
      ["type", html(type)],
      ["slots", slots > 1 && slots],
      ["what", html(what)],
      ["alignment", `${alignment} B`],
      ["live", ranges.join("; ")],
      ["allocated", allocated !== null && this.lines([allocated])],
      ["written", this.lines(writes)],
      ["read", this.lines(reads)],
      ["pipes", html(pipes.join(", "))],
      ["pinned at", pinned?.join(", ")],
      ["may go in place with", this.links(pairs.map(([one, two]) => (one === index ? two : one)))],
    ]), ...this.memory.plans.map((plan) => this.inPlan(index, size, plan))];
  }
  inPlan(index, size, plan) {
    const { each } = this.memory, { before, inPlace, after } = this.memory.sharers(index, plan);
    const offsets = plan.offsets[index], [level, reason] = plan.levels?.[index] ?? [];
    const costs = plan.paid.filter(([one, two]) => one === index || two === index).slice(0, 12);
    return heading(`In the plan of ${plan.label}`) + factsOf([
      [offsets.length > 1 ? "offsets" : "offset", offsets.map((offset) =>
        `${countText(offset)} (0x${offset.toString(16)})`).join(", ") + each],
      ["ends at", offsets.map((offset) => countText(offset + size)).join(", ") + each],
      ["reuse level", level !== undefined && html(reason ? `${level}: it ${reason}` : level)],
      ["takes bytes of", this.links(before)],
      ["in place with", this.links(inPlace)],
      ["leaves bytes to", this.links(after)],
      ...costs.map(([one, two, cost]) => ["sharing costs",
        `${countText(cost)} with ${this.links([one === index ? two : one])}`]),
      ["live at the peak", plan.live.has(index)
        ? `yes, ${shareText(this.memory.bytesOf(index, plan), plan.peak)} of the peak` : "no"],
    ]);
  }
  // --------------------------------------------------------------------------- several buffers
  list(indices, plan, most = 60, id = "", last = []) {
    const sum = (all) => all.reduce((n, at) => n + this.memory.bytesOf(at, plan), 0);
    const rows = indices.slice(0, most).map((index) => {
      const { name, label: short, size, type } = this.buffers[index], whole = sum([index]);
      const slots = plan.offsets[index].length, title = escaped(name);
      return `<tr class="can" tabindex="0" data-buffer="${title}" title="${title}">` +
        td(html(short || name) + (type && `<div class="note">${html(type)}</div>`) +
          bar(whole, plan.peak), 'class="name"') + number((slots > 1 ? `${slots} × ` : "") +
        bytesText(size), `${countText(whole)} bytes`) + number(shareText(whole, plan.peak)) + "</tr>";
    });
    const rest = indices.slice(most), more = rest.length ? [[`${countText(rest.length)} more`, sum(rest)]] : [];
    return table(["buffer", "bytes", "share"], [...rows, ...[...more, ...last].map(([text, size, under = ""]) =>
      td(text + under, 'class="note"') + bytes(size) + number(shareText(size, plan.peak)))], id);
  }
  peak() {
    const { plans, rows } = this.memory, plan = plans[this.peakPlan], { peak, peakOccupied: used } = plan;
    const choices = plans.map((one, at) =>
      `<option value="${at}"${at === this.peakPlan ? " selected" : ""}>${escaped(one.label)}</option>`);
    const unused = peak > used ? [["not used at that moment", peak - used, bar(peak - used, peak, "bar gap")]] : [];
    const twice = plan.peakLive.reduce((sum, at) => sum + this.memory.bytesOf(at, plan), 0) - used;
    this.put("peak", heading("What the peak is made of"),
      plans.length > 1 ? `<select aria-label="Plan whose peak is shown">${choices.join("")}</select>` : "",
      this.reached(plan), `<p>${countText(plan.peakLive.length)} buffers live at ${
        rows.name(plan.peakPosition)}, largest first:</p>`,
      this.list(plan.peakLive, plan, 60, "peak-list", unused),
      twice > 0 ? note(`${exactText(twice)} of these are shared in place.`) : "");
  }
  // Where the peak is reached: what is mended at one place saves nothing while there is another.
  reached({ peak, peakPlaces, remark, below }) {
    const { each, rows } = this.memory, names = new Set(), first = peakPlaces.filter((at) =>
      names.size < names.add(rows.name(at)).size), count = first.length;
    const sum = remark ? " are the sum of the allocations. Most bytes are in use at " : " at ";
    return `<p>${exactText(peak)}${each}${sum}${count > 1 ? `${countText(count)} places: ` : ""}${
      some(this.places(first), 8)}${count > 1 ? ". A lower peak has to save bytes at each of them."
      : ", and nowhere else."}${below === null ? "" : ` Elsewhere at most ${
      exactText(below[0])}${each} are in use, at ${this.places([below[1]])}.`}</p>`;
  }
  plans() {
    const { given: { bound, capacity, noReuse, form }, plans, each } = this.memory;
    const rows = plans.flatMap((plan) => [td(html(plan.label), 'class="name"') + bytes(plan.peak) +
      number(bound ? (plan.peak / bound).toFixed(3) : ""), td(note(plan.said.join(" · ")), 'colspan="3"')]);
    for (const [name, size] of [["no reuse", noReuse], ["lower bound", bound], ["capacity", capacity]]) {
      if (size !== null) rows.push(td(name) + number(bytesText(size)));
    }
    this.put("table", heading("Plans"), table(["plan", `peak${each && ", for each"}`, "÷ bound"],
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
    return (begin && link("buffer", begin)) + text.slice(begin.length).split(/('[^']*')/)
      .map((part) => {
        const name = part.slice(1, -1);
        if (part.startsWith("'")) return index.has(name) ? link("buffer", name) : escaped(part);
        return escaped(part.replace(/(?<![\w.([])\d{4,}(?![\w.)])/g, countText));
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
      this.list(indices, this.memory.plans[0], 20) : "", factsOf([["lines", this.lines(lines)]]));
  }
}
