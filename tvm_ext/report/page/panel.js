// The panel on the right: what is chosen, what the peak is made of, the plans as a table.

function make(tag, text = "", className = "") {
  const element = document.createElement(tag);
  // Names may break between their words.
  text.split(/(?<=[_./:])(?![\d\s]|$)|(?<=[a-z])(?=[A-Z][a-z])/).forEach((part, at) => {
    if (at) element.append(document.createElement("wbr"));
    if (part !== "") element.append(part);
  });
  if (className) element.className = className;
  return element;
}

// Gives a field of choices its options, [value, text].
function fill(select, options) {
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
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

// A table of facts, [name, value]; those without a value are left out.
function factsOf(rows) {
  return table(null, rows.filter(([, value]) => value !== "" && value !== null)
    .map(([name, value]) => [make("th", name), value]));
}

function number(text, title = "") {
  const cell = make("td", text, "number");
  if (title) cell.title = title;
  return cell;
}

function note(text) { return make("p", text, "note"); }

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
  constructor(page) {
    this.page = page;
    this.peakPlan = 0;
  }
  get memory() { return this.page.memory; }
  put(id, elements) { byId(id).replaceChildren(...elements); }
  // All that is of the memory as a whole.
  show() {
    this.peakPlan = 0;
    this.nothing();
    this.peak();
    this.plans();
    this.why();
    this.runs();
    this.left();
  }
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
    return positions.map((position) => this.active(make("a", this.memory.rows.name(position), "at"),
      () => this.page.goToRow(position)));
  }
  // A cell with the first of some elements; empty where there is none.
  some(elements, most = 12) {
    if (!elements.length) return "";
    const cell = make("td", "", "name");
    elements.slice(0, most).forEach((element, at) => cell.append(at ? ", " : "", element));
    if (elements.length > most) cell.append(` and ${elements.length - most} more`);
    return cell;
  }
  links(indices) { return this.some(indices.map((index) => this.link(index))); }
  lines(numbers) {
    return this.some(numbers.map((line) =>
      this.active(make("a", String(line + 1)), () => this.page.goToLine(line))), 10);
  }
  // ------------------------------------------------------------------------------ one buffer
  buffer(index) {
    const buffer = this.memory.buffers[index], { rows } = this.memory;
    const ranges = buffer.live.map(([begin, end]) => {
      const positions = `positions ${begin} to ${end - 1}`;
      return rows.listing
        ? `lines ${rows.line(begin) + 1} to ${rows.line(end - 1) + 1} (${positions})` : positions;
    });
    this.put("facts", [make("h2", buffer.name), factsOf([
      ["size", exactText(buffer.size) + (buffer.slots > 1 ? " a slot" : "")],
      ["type", buffer.type],
      ["slots", buffer.slots > 1 ? String(buffer.slots) : ""],
      ["what", buffer.what],
      ["alignment", `${buffer.alignment} B`],
      ["live", ranges.join("; ")],
      ["allocated", buffer.allocated === null ? "" : this.lines([buffer.allocated])],
      ["written", this.lines(buffer.writes)],
      ["read", this.lines(buffer.reads)],
      ["pipes", buffer.pipes.join(", ")],
      ["pinned at", buffer.pinned?.join(", ") ?? ""],
      ["may go in place with", this.links(this.memory.partners[index])],
    ]), ...this.memory.plans.flatMap((plan) => this.inPlan(index, plan))]);
  }
  inPlan(index, plan) {
    const { size } = this.memory.buffers[index], offsets = plan.offsets[index];
    const sharers = this.memory.sharers(index, plan), [level, reason] = plan.levels?.[index] ?? [];
    const each = (text) => offsets.map(scaledBytes).map(text).join(", ") + eachText();
    const costs = plan.paid.filter(([one, two]) => one === index || two === index).slice(0, 12);
    const live = plan.peakLive.includes(index);
    return [make("h2", `In the plan of ${plan.label}`), factsOf([
      [offsets.length > 1 ? "offsets" : "offset",
        each((offset) => `${countText(offset)} (0x${offset.toString(16)})`)],
      ["ends at", each((offset) => countText(offset + scaledBytes(size)))],
      ["reuse level", level === undefined ? "" : reason ? `${level}: it ${reason}` : String(level)],
      ["takes bytes of", this.links(sharers.before)],
      ["in place with", this.links(sharers.inPlace)],
      ["leaves bytes to", this.links(sharers.after)],
      ...costs.map(([one, two, cost]) => {
        const cell = make("td", `${countText(cost)} with `);
        cell.append(this.link(one === index ? two : one));
        return ["sharing costs", cell];
      }),
      ["live at the peak", live
        ? `yes, ${shareText(this.memory.bytesOf(index, plan), plan.peak)} of the peak` : "no"],
    ])];
  }
  // --------------------------------------------------------------------------- several buffers
  nothing() {
    const line = this.memory.rows.listing ? " or at a line" : "";
    this.put("facts", [note(`Point at a buffer${line}; click to keep it.`)]);
  }
  line(line) {
    const plan = this.memory.plans[this.peakPlan], live = this.memory.liveIn(line, line + 1);
    this.put("facts", [make("h2", `Live at line ${line + 1}`),
      live.length ? this.list(live, plan) : note("nothing")]);
  }
  list(indices, plan, most = 60, action = (index) => this.page.choose(index, true)) {
    const element = table(["buffer", "bytes", "share"], []), whole = plan.peak;
    for (const index of indices.slice(0, most)) {
      const { name, label: short, size, type } = this.memory.buffers[index];
      const bytes = this.memory.bytesOf(index, plan), row = element.insertRow();
      const cell = make("td", short || name, "name"), slots = plan.offsets[index].length;
      row.className = "can";
      row.dataset.buffer = row.title = name;
      if (type) cell.append(make("div", type, "note"));
      cell.append(bar(bytes, whole));
      row.append(cell, number((slots > 1 ? `${slots} × ` : "") + bytesText(size),
        `${countText(bytes)} bytes`), number(shareText(bytes, whole)));
      this.toBuffer(row, index, () => action(index));
    }
    if (indices.length > most) {
      const rest = indices.slice(most)
        .reduce((sum, index) => sum + this.memory.bytesOf(index, plan), 0);
      element.insertRow().append(make("td", `${countText(indices.length - most)} more`, "note"),
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
      fill(select, plans.map((one, at) => [at, one.label]));
      select.value = String(this.peakPlan);
      select.addEventListener("change", () => {
        this.peakPlan = Number(select.value);
        this.peak();
      });
      elements.push(select);
    }
    const list = this.list(plan.peakLive, plan), gap = plan.peak - plan.peakOccupied;
    if (gap > 0) {
      const name = make("td", "not used at that moment", "note");
      name.append(bar(gap, plan.peak, "bar gap"));
      list.insertRow().append(name, number(bytesText(gap)), number(shareText(gap, plan.peak)));
    }
    list.id = "peak-list";
    elements.push(this.reached(plan), make("p", `${countText(plan.peakLive.length)} buffers live at ` +
      `${rows.name(plan.peakPosition)}, largest first:`), list);
    const double = plan.peakLive.reduce((sum, at) => sum + this.memory.bytesOf(at, plan), 0) -
      plan.peakOccupied;
    if (double > 0) elements.push(note(`${exactText(double)} of these are shared in place.`));
    this.put("peak", elements);
  }
  // Where the peak is reached: what is mended at one place saves nothing while there is another.
  reached(plan) {
    const { rows } = this.memory, most = 8, text = make("p", plan.remark
      ? `${exactText(plan.peak)} are the sum of the allocations. Most bytes are in use at `
      : `${exactText(plan.peak)} at `);
    const places = [...new Map(plan.peakPlaces.map((at) => [rows.name(at), at]).reverse()).values()]
      .reverse();
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
    const { given: { bound, capacity, form }, plans, buffers } = this.memory;
    const rows = plans.flatMap((plan) => {
      const more = note(planText(plan)), cell = make("td");
      cell.colSpan = 3;
      cell.append(more);
      return [[make("td", plan.label, "name"), number(bytesText(plan.peak),
        `${countText(plan.peak)} bytes`), number(bound ? (plan.peak / bound).toFixed(3) : "")], [cell]];
    });
    const sum = buffers.reduce((all, one) => all + one.size * one.slots, 0);
    for (const [name, bytes] of [["lower bound", bound], ["capacity", capacity],
      ["sum of all buffers", sum]]) if (bytes !== null) rows.push([name, number(bytesText(bytes))]);
    const element = table(["plan", `peak${eachText() && ", for each"}`, "÷ bound"], rows);
    element.id = "plan-table";
    this.put("table", [make("h2", "Plans"), element, ...(form ? [note(form)] : [])]);
  }
  why() {
    this.put("why", this.memory.plans.filter((one) => one.why).flatMap((plan) => [
      make("h2", `Why the plan of ${plan.label} does not fit`), ...plan.why.split("\n").map((line) => {
        const text = line.trimStart(), part = make("p", "", line.length - text.length > 2 ? "deep" : "");
        part.append(...this.said(text));
        return part;
      })]));
  }
  // A line of a message: names of buffers as links, long numbers with separators.
  said(text) {
    const { index } = this.memory, first = /^(.+?): \d+ bytes/.exec(text)?.[1];
    const begin = index.has(first) ? [this.link(index.get(first))] : [];
    const rest = begin.length ? text.slice(first.length) : text;
    return [...begin, ...rest.split(/('[^']*')/).map((part) => {
      const at = index.get(part.slice(1, -1));
      if (part.startsWith("'")) return at === undefined ? part : this.link(at);
      return part.replace(/(?<![\w.([])\d{4,}(?![\w.)])/g, (digits) => countText(digits));
    })];
  }
  runs() {
    const runs = DATA.runs.filter((run) => run.function === this.memory.given.function);
    const elements = runs.length ? [make("h2", "Pipelines in simulation")] : [];
    for (const { label: planner, makespan, pipes, waits } of runs) {
      elements.push(make("p", `${planner}: ${countText(makespan)} cycles`),
        table(["pipe", "busy", "idle"], pipes.map(([pipe, ...times]) =>
          [pipe, ...times.map((time) => number(shareText(time, makespan)))])));
      if (waits.length) {
        elements.push(note("Longest waits for bytes that another buffer uses:"),
          table(["wait", "cycles"], waits.map(([pipe, buffer, other, cycles]) =>
            [make("td", `${pipe}: ${buffer} after ${other}`, "name"), number(countText(cycles))])));
      }
    }
    this.put("runs", elements);
  }
  left() {
    const { left, notes } = DATA, elements = [];
    if (notes.length) elements.push(make("h2", "Notes"), ...notes.map(note));
    if (left.length) elements.push(make("h2", `Not planned: ${countText(left.length)}`));
    elements.push(...left.slice(0, FEW_LEFT).map(note));
    if (left.length > FEW_LEFT) {
      const details = make("details");
      details.append(make("summary", `${countText(left.length - FEW_LEFT)} more`),
        ...left.slice(FEW_LEFT, MOST_LEFT).map(note));
      if (left.length > MOST_LEFT) details.append(note(`and ${countText(left.length - MOST_LEFT)} more`));
      elements.push(details);
    }
    this.put("left", elements);
  }
  results(indices, lines) {
    const elements = [], [plan] = this.memory.plans;
    if (indices.length) {
      elements.push(make("h2", `Found ${countText(indices.length)}`),
        this.list(indices, plan, 20, (index) => this.page.show(index)));
    }
    if (lines.length) elements.push(factsOf([["lines", this.lines(lines)]]));
    this.put("results", elements);
  }
}

function bar(part, whole, className = "bar") {
  const element = make("div", "", className);
  element.style.width = `${Math.min(100, (100 * part) / Math.max(1, whole))}%`;
  return element;
}
