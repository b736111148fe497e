// The panel on the right: what is chosen, what the peak is made of, the plans as a table.

function make(tag, text = "", className = "") {
  const element = document.createElement(tag);
  // Names may break between their words; an option has only text.
  const parts = tag === "option" ? [text]
    : text.split(/(?<=[_./:])(?![\d\s]|$)|(?<=[a-z])(?=[A-Z][a-z])/);
  parts.forEach((part, at) => {
    if (at) element.append(document.createElement("wbr"));
    if (part !== "") element.append(part);
  });
  if (className) element.className = className;
  return element;
}

function table(head, rows) {
  const element = make("table");
  if (head) {
    const line = element.insertRow();
    head.forEach((text, at) => line.append(make("th", text, at ? "number" : "first")));
  }
  for (const cells of rows) {
    const line = element.insertRow();
    for (const cell of cells) line.append(cell instanceof Node ? cell : make("td", cell));
  }
  return element;
}

function number(text) { return make("td", text, "number"); }

const STATUS = {
  optimal: "optimal: proven", feasible: "fits", infeasible: "proven not to fit",
  "not found": "does not fit",
};

const MOST_LEFT = 500; // Lines of what is not planned.

function planText(plan) {
  return [STATUS[plan.status], plan.remark, plan.penalty ? `penalty ${countText(plan.penalty)}` : "",
    plan.makespan === null ? "" : `${countText(plan.makespan)} cycles`].filter(Boolean).join(" · ");
}

class Panel {
  constructor(page) {
    this.page = page;
    this.parts = Object.fromEntries(["facts", "results", "why", "peak", "table", "runs", "left"]
      .map((name) => [name, document.getElementById(name)]));
    this.peakPlan = 0;
  }
  get memory() { return this.page.memory; }
  put(name, elements) { this.parts[name].replaceChildren(...elements); }
  // An element that does something when it is clicked, or entered by the keyboard.
  active(element, action) {
    element.tabIndex = 0;
    element.addEventListener("click", action);
    element.addEventListener("keydown", (event) => { if (event.key === "Enter") action(); });
    return element;
  }
  toBuffer(element, index, action = () => this.page.choose(index, true)) {
    // Other facts above it would push it away from under the pointer.
    element.addEventListener("mouseenter", () => this.page.hover(index, null, false));
    element.addEventListener("mouseleave", () => this.page.hover(null, null, false));
    return this.active(element, action);
  }
  link(index) { return this.toBuffer(make("a", this.memory.buffers[index].name), index); }
  // Positions by their rows, as links.
  places(positions) {
    const { rows } = this.memory;
    return positions.map((position) => this.active(make("a", rows.name(position), "at"),
      () => this.page.goToRow(position)));
  }
  links(indices, most = 12) {
    const cell = make("td", "", "name");
    indices.slice(0, most).forEach((index, at) => {
      if (at) cell.append(", ");
      cell.append(this.link(index));
    });
    if (indices.length > most) cell.append(` and ${indices.length - most} more`);
    return cell;
  }
  lines(numbers) {
    const cell = make("td"), most = 10;
    numbers.slice(0, most).forEach((line, at) => {
      if (at) cell.append(", ");
      cell.append(this.active(make("a", String(line + 1)), () => this.page.goToLine(line)));
    });
    if (numbers.length > most) cell.append(` and ${numbers.length - most} more`);
    return cell;
  }
  // ------------------------------------------------------------------------------ one buffer
  buffer(index) {
    const buffer = this.memory.buffers[index], rows = [];
    const listing = this.memory.rows.listing;
    rows.push(["size", exactText(buffer.size) + (buffer.slots > 1 ? " a slot" : "")]);
    if (buffer.slots > 1) rows.push(["slots", String(buffer.slots)]);
    if (buffer.what) rows.push(["what", buffer.what]);
    rows.push(["alignment", `${buffer.alignment} B`]);
    const ranges = buffer.live.map(([begin, end]) => {
      const positions = `positions ${begin} to ${end - 1}`;
      if (!listing) return positions;
      const [first, last] = [this.memory.rows.clamp(begin), this.memory.rows.clamp(end - 1)];
      const lines = `lines ${listing.lineOf[first] + 1} to ${listing.lineOf[last] + 1}`;
      return `${lines} (${positions})`;
    });
    rows.push(["live", ranges.join("; ")]);
    if (buffer.allocated !== null) rows.push(["allocated", this.lines([buffer.allocated])]);
    if (buffer.writes.length) rows.push(["written", this.lines(buffer.writes)]);
    if (buffer.reads.length) rows.push(["read", this.lines(buffer.reads)]);
    if (buffer.pipes.length) rows.push(["pipes", buffer.pipes.join(", ")]);
    if (buffer.pinned) rows.push(["pinned at", buffer.pinned.join(", ")]);
    if (this.memory.partners[index].length) {
      rows.push(["may go in place with", this.links(this.memory.partners[index])]);
    }
    const elements = [make("h2", buffer.name), table(null, rows.map(([name, value]) =>
      [make("th", name), value]))];
    for (const plan of this.memory.plans) elements.push(...this.inPlan(index, plan));
    this.put("facts", elements);
  }
  inPlan(index, plan) {
    const rows = [], size = this.memory.buffers[index].size;
    const offsets = plan.offsets[index];
    rows.push([offsets.length > 1 ? "offsets" : "offset",
      offsets.map(scaledBytes).map((offset) => `${countText(offset)} (0x${offset.toString(16)})`)
        .join(", ") + eachText()]);
    rows.push(["ends at",
      offsets.map((offset) => countText(scaledBytes(offset + size))).join(", ") + eachText()]);
    if (plan.levels) {
      const [level, reason] = plan.levels[index];
      rows.push(["reuse level", reason ? `${level}: it ${reason}` : String(level)]);
    }
    const sharers = this.memory.sharers(index, plan);
    if (sharers.before.length) rows.push(["takes bytes of", this.links(sharers.before)]);
    if (sharers.inPlace.length) rows.push(["in place with", this.links(sharers.inPlace)]);
    if (sharers.after.length) rows.push(["leaves bytes to", this.links(sharers.after)]);
    const costs = plan.paid.filter(([one, two]) => one === index || two === index);
    for (const [one, two, cost] of costs.slice(0, 12)) {
      const cell = make("td", `${countText(cost)} with `);
      cell.append(this.link(one === index ? two : one));
      rows.push(["sharing costs", cell]);
    }
    const at = plan.peakLive.includes(index)
      ? `yes, ${shareText(this.memory.bytesOf(index, plan), plan.peak)} of the peak` : "no";
    rows.push(["live at the peak", at]);
    return [make("h2", `In the plan of ${plan.label}`),
      table(null, rows.map(([name, value]) => [make("th", name), value]))];
  }
  // --------------------------------------------------------------------------- several buffers
  nothing() {
    this.put("facts", [make("p", this.memory.rows.listing
      ? "Point at a buffer or at a line; click to keep it."
      : "Point at a buffer; click to keep it.", "note")]);
  }
  line(line) {
    const plan = this.memory.plans[this.peakPlan];
    const live = this.memory.liveIn(line, line + 1);
    this.put("facts", [make("h2", `Live at line ${line + 1}`),
      live.length ? this.list(live, plan, plan.peak) : make("p", "nothing", "note")]);
  }
  list(indices, plan, whole, most = 60, action = (index) => this.page.choose(index, true)) {
    const element = table(["buffer", "bytes", "share"], []);
    for (const index of indices.slice(0, most)) {
      const bytes = this.memory.bytesOf(index, plan), row = element.insertRow();
      row.className = "can";
      row.dataset.buffer = this.memory.buffers[index].name;
      const { name: full, label } = this.memory.buffers[index];
      const name = make("td", full, "name");
      if (label && !full.startsWith(label)) name.append(make("div", label, "note"));
      const bar = make("div", "", "bar");
      bar.style.width = `${Math.min(100, (100 * bytes) / Math.max(1, whole))}%`;
      name.append(bar);
      const slots = plan.offsets[index].length;
      const size = number((slots > 1 ? `${slots} × ` : "") +
        bytesText(this.memory.buffers[index].size));
      size.title = `${countText(bytes)} bytes`;
      row.append(name, size, number(shareText(bytes, whole)));
      this.toBuffer(row, index, () => action(index));
    }
    if (indices.length > most) {
      const rest = indices.slice(most)
        .reduce((sum, index) => sum + this.memory.bytesOf(index, plan), 0);
      const row = element.insertRow();
      row.append(make("td", `${countText(indices.length - most)} more`, "note"),
        number(bytesText(rest)), number(shareText(rest, whole)));
    }
    return element;
  }
  peak() {
    const { plans, rows } = this.memory, plan = plans[this.peakPlan] ?? plans[0];
    const elements = [make("h2", "What the peak is made of")];
    if (plans.length > 1) {
      const select = make("select");
      select.setAttribute("aria-label", "Plan whose peak is shown");
      plans.forEach((one, at) => {
        const option = make("option", one.label);
        option.value = String(at);
        select.append(option);
      });
      select.value = String(this.peakPlan);
      select.addEventListener("change", () => {
        this.peakPlan = Number(select.value);
        this.peak();
      });
      elements.push(select);
    }
    elements.push(this.reached(plan));
    elements.push(make("p", `${countText(plan.peakLive.length)} buffers live at ` +
      `${rows.name(plan.peakPosition)}, largest first:`));
    const list = this.list(plan.peakLive, plan, plan.peak);
    const gap = plan.peak - plan.peakOccupied;
    if (gap > 0) {
      const row = list.insertRow(), name = make("td", "not used at that moment", "note");
      const bar = make("div", "", "bar gap");
      bar.style.width = `${(100 * gap) / plan.peak}%`;
      name.append(bar);
      row.append(name, number(bytesText(gap)), number(shareText(gap, plan.peak)));
    }
    list.id = "peak-list";
    elements.push(list);
    const double = plan.peakLive.reduce((sum, at) => sum + this.memory.bytesOf(at, plan), 0) -
      plan.peakOccupied;
    if (double > 0) {
      elements.push(make("p", `${exactText(double)} of these are shared in place.`, "note"));
    }
    this.put("peak", elements);
  }
  // Where the peak is reached: what is mended at one place saves nothing while there is another.
  reached(plan) {
    const { rows } = this.memory, most = 8, text = make("p", plan.remark
      ? `${exactText(plan.peak)} are the sum of the allocations. Most bytes are in use at `
      : `${exactText(plan.peak)} at `);
    const seen = new Set();
    const places = plan.peakPlaces.filter((at) => !seen.has(rows.name(at)) && seen.add(rows.name(at)));
    const count = places.length;
    if (count > 1) text.append(`${countText(count)} places: `);
    this.places(places.slice(0, most)).forEach((link, at) => text.append(at ? ", " : "", link));
    if (count > most) text.append(` and ${countText(count - most)} more`);
    text.append(count > 1 ? ". A lower peak has to save bytes at each of them." : ", and nowhere else.");
    if (plan.below !== null) {
      const [bytes, position] = plan.below;
      text.append(` Elsewhere at most ${exactText(bytes)} are in use, at `,
        ...this.places([position]), ".");
    }
    return text;
  }
  plans() {
    const { scope, plans } = this.memory;
    const rows = plans.flatMap((plan) => {
      const peak = number(bytesText(plan.peak)), more = make("td", planText(plan), "note");
      peak.title = `${countText(plan.peak)} bytes`;
      more.colSpan = 3;
      const factor = number(scope.bound ? (plan.peak / scope.bound).toFixed(3) : "");
      return [[make("td", plan.label, "name"), peak, factor], [more]];
    });
    rows.push([make("td", "lower bound"), number(bytesText(scope.bound))]);
    if (scope.capacity !== null) {
      rows.push([make("td", "capacity"), number(bytesText(scope.capacity))]);
    }
    const sum = this.memory.buffers.reduce((all, one) => all + one.size * one.slots, 0);
    rows.push([make("td", "sum of all buffers"), number(bytesText(sum))]);
    const element = table(["plan", each.unit && each.value === null ? "peak, for each" : "peak",
      "÷ bound"], rows);
    element.id = "plan-table";
    const { form } = this.memory.scope;
    this.put("table", [make("h2", "Plans"), element, ...(form ? [make("p", form, "note")] : [])]);
  }
  why() {
    const elements = [];
    for (const plan of this.memory.plans.filter((one) => one.why)) {
      elements.push(make("h2", `Why the plan of ${plan.label} does not fit`));
      for (const line of plan.why.split("\n")) {
        const text = line.trimStart(), deep = line.length - text.length > 2;
        const part = make("p", "", deep ? "deep" : "");
        part.append(...this.said(text));
        elements.push(part);
      }
    }
    this.put("why", elements);
  }
  // A line of a message: names of buffers as links, long numbers with separators.
  said(text) {
    const names = this.memory.index;
    const first = /^(.+?): \d+ bytes/.exec(text)?.[1];
    const begin = names.has(first) ? [this.link(names.get(first))] : [];
    const rest = begin.length ? text.slice(first.length) : text;
    return [...begin, ...rest.split(/('[^']*')/).map((part) => {
      const index = names.get(part.slice(1, -1));
      if (part.startsWith("'") && index !== undefined) return this.link(index);
      return part.startsWith("'") ? part
        : part.replace(/(?<![\w.([])\d{4,}(?![\w.)])/g, (digits) => countText(digits));
    })];
  }
  runs() {
    const runs = DATA.runs.filter((run) => run.function === this.memory.scope.function);
    const elements = runs.length ? [make("h2", "Pipelines in simulation")] : [];
    for (const run of runs) {
      elements.push(make("p", `${run.label}: ${countText(run.makespan)} cycles`));
      elements.push(table(["pipe", "busy", "idle"], run.pipes.map(([pipe, busy, idle]) =>
        [make("td", pipe), number(shareText(busy, run.makespan)),
          number(shareText(idle, run.makespan))])));
      if (run.waits.length) {
        elements.push(make("p", "Longest waits for bytes that another buffer uses:", "note"));
        elements.push(table(["wait", "cycles"], run.waits.map(
          ([pipe, buffer, other, cycles]) =>
            [make("td", `${pipe}: ${buffer} after ${other}`, "name"), number(countText(cycles))])));
      }
    }
    this.put("runs", elements);
  }
  left() {
    const { left, notes } = DATA, elements = [], most = 12;
    const note = (text) => make("div", text, "note");
    if (notes.length) elements.push(make("h2", "Notes"), ...notes.map(note));
    if (left.length) elements.push(make("h2", `Not planned: ${countText(left.length)}`));
    elements.push(...left.slice(0, most).map(note));
    if (left.length > most) {
      const details = make("details");
      details.append(make("summary", `${countText(left.length - most)} more`));
      details.append(...left.slice(most, MOST_LEFT).map(note));
      if (left.length > MOST_LEFT) details.append(note(`and ${countText(left.length - MOST_LEFT)} more`));
      elements.push(details);
    }
    this.put("left", elements);
  }
  results(indices, lines) {
    const elements = [];
    if (indices.length) {
      elements.push(make("h2", `Found ${countText(indices.length)}`));
      const [plan] = this.memory.plans;
      elements.push(this.list(indices, plan, plan.peak, 20, (index) => this.page.show(index)));
    }
    if (lines.length) {
      const text = table(null, [[make("th", "lines"), this.lines(lines)]]);
      elements.push(text);
    }
    this.put("results", elements);
  }
}
