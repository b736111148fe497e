// The data of one memory, ready to draw: where each slot is, in bytes and in lines.

const DATA = JSON.parse(document.getElementById("data").textContent);

// Rows of the vertical axis: lines of the program, or positions where there is no program. Several
// positions of one line share its height, so that rectangles overlap only where buffers do.
class Rows {
  constructor(scope) {
    const listing = scope.listing === null ? null : DATA.listings[scope.listing];
    this.listing = listing;
    this.begin = scope.begin;
    this.total = listing ? listing.lines.length : Math.max(1, scope.end - scope.begin);
    if (!listing) return;
    const lineOf = listing.lineOf;
    this.tops = new Float64Array(lineOf.length);
    this.bottoms = new Float64Array(lineOf.length);
    for (let first = 0; first < lineOf.length; ) {
      let next = first;
      while (next < lineOf.length && lineOf[next] === lineOf[first]) next++;
      for (let at = first; at < next; at++) {
        this.tops[at] = lineOf[at] + (at - first) / (next - first);
        this.bottoms[at] = lineOf[at] + (at - first + 1) / (next - first);
      }
      first = next;
    }
  }
  clamp(position) {
    return Math.max(0, Math.min(position, this.tops.length - 1));
  }
  top(position) {
    return this.listing ? this.tops[this.clamp(position)] : position - this.begin;
  }
  bottom(end) {
    return this.listing ? this.bottoms[this.clamp(end - 1)] : end - this.begin;
  }
  // The name of a row, for people.
  name(position) {
    return this.listing
      ? `line ${this.listing.lineOf[this.clamp(position)] + 1}` : `position ${position}`;
  }
}

// The rectangles of one plan, as columns: one for each slot and live range.
class Boxes {
  constructor(scope, plan, rows) {
    const buffers = scope.buffers, columns = { buffer: [], slot: [], x0: [], x1: [], y0: [], y1: [] };
    this.of = buffers.map(() => []);
    buffers.forEach((buffer, index) => {
      if (!buffer.size) return;
      plan.offsets[index].forEach((offset, slot) => {
        for (const [begin, end] of buffer.live) {
          this.of[index].push(columns.buffer.length);
          columns.buffer.push(index);
          columns.slot.push(slot);
          columns.x0.push(offset);
          columns.x1.push(offset + buffer.size);
          columns.y0.push(rows.top(begin));
          columns.y1.push(rows.bottom(end));
        }
      });
    });
    this.length = columns.buffer.length;
    for (const name of ["buffer", "slot"]) this[name] = Int32Array.from(columns[name]);
    for (const name of ["x0", "x1", "y0", "y1"]) this[name] = Float64Array.from(columns[name]);
    this.shared = this.inPlace(scope, plan);
    this.nameRows();
  }
  // Where an in-place pair has the same bytes at the same time: [source's box, result's, top, bottom].
  inPlace(scope, plan) {
    const found = [];
    for (const [source, destination] of scope.inPlace) {
      for (const one of this.of[source]) {
        for (const two of this.of[destination]) {
          const slot = this.slot[one];
          if (slot !== this.slot[two]) continue;
          if (plan.offsets[source][slot] !== plan.offsets[destination][slot]) continue;
          const top = Math.max(this.y0[one], this.y0[two]);
          const bottom = Math.min(this.y1[one], this.y1[two]);
          if (top < bottom) found.push([one, two, top, bottom]);
        }
      }
    }
    return found;
  }
  // The rows in which a box has its name: those that it shares with no other, if there are any;
  // else those in which it takes the place of its source.
  nameRows() {
    this.n0 = this.y0.slice();
    this.n1 = this.y1.slice();
    const taken = new Map();
    for (const [one, two, top, bottom] of this.shared) {
      this.n1[one] = Math.min(this.n1[one], top);
      this.n0[two] = Math.max(this.n0[two], bottom);
      taken.set(two, bottom);
    }
    for (let at = 0; at < this.length; at++) {
      if (this.n0[at] < this.n1[at]) continue;
      this.n0[at] = this.y0[at];
      this.n1[at] = taken.get(at) ?? this.y1[at];
    }
  }
}

class Memory {
  constructor(scope) {
    this.scope = scope;
    this.buffers = scope.buffers;
    this.rows = new Rows(scope);
    this.plans = scope.plans.map((plan) => ({ ...plan, boxes: new Boxes(scope, plan, this.rows) }));
    this.index = new Map(this.buffers.map((buffer, at) => [buffer.name, at]));
    this.order = this.buffers.map((_, at) => at)
      .sort((a, b) => this.buffers[a].live[0][0] - this.buffers[b].live[0][0] || a - b);
    this.partners = this.buffers.map(() => []);
    for (const [source, destination] of scope.inPlace) {
      this.partners[source].push(destination);
      this.partners[destination].push(source);
    }
    const top = Math.max(1, scope.bound, ...this.plans.map((plan) => plan.peak));
    // A map of a few KiB in a memory of many GiB would be a line at the edge.
    this.top = scope.capacity !== null && scope.capacity <= 2 * top
      ? Math.max(top, scope.capacity) : top;
    this.short = this.buffers.map(({ name, label }) => label || name);
    this.profile = this.liveBytes();
    this.mostLive = this.profile.reduce((most, step) => Math.max(most, step[2]), 0);
  }
  // Steps [top row, bottom row, bytes]: each slot counted, whether or not it shares in place.
  liveBytes() {
    const change = new Map();
    const add = (at, bytes) => change.set(at, (change.get(at) ?? 0) + bytes);
    for (const buffer of this.buffers) {
      for (const [begin, end] of buffer.live) {
        add(begin, buffer.slots * buffer.size);
        add(end, -buffer.slots * buffer.size);
      }
    }
    const positions = [...change.keys()].sort((a, b) => a - b), steps = [];
    let bytes = 0;
    positions.slice(0, -1).forEach((position, at) => {
      bytes += change.get(position);
      steps.push([this.rows.top(position), this.rows.bottom(positions[at + 1]), bytes]);
    });
    return steps;
  }
  // The buffers live somewhere in the rows [top, bottom), largest first.
  liveIn(top, bottom) {
    const rows = this.rows;
    return this.largestFirst(this.order.filter((at) => this.buffers[at].live
      .some(([begin, end]) => rows.top(begin) < bottom && rows.bottom(end) > top)));
  }
  largestFirst(chosen) {
    const bytes = (at) => this.buffers[at].size * this.plans[0].offsets[at].length;
    return chosen.sort((a, b) => bytes(b) - bytes(a) || a - b);
  }
  bytesOf(index, plan) {
    return this.buffers[index].size * plan.offsets[index].length;
  }
  together(one, two) {
    return this.buffers[one].live.some(([begin, end]) =>
      this.buffers[two].live.some(([first, last]) => begin < last && first < end));
  }
  share(one, two, plan) {
    const size = this.buffers[one].size, other = this.buffers[two].size;
    return plan.offsets[one].some((low) =>
      plan.offsets[two].some((begin) => low < begin + other && begin < low + size));
  }
  // The buffers that have bytes in common with one, in a plan: those before, with and after it.
  sharers(index, plan) {
    const found = { before: [], inPlace: [], after: [] };
    if (!this.buffers[index].size) return found;
    for (const other of this.order) {
      if (other === index || !this.buffers[other].size || !this.share(index, other, plan)) continue;
      const first = this.buffers[other].live[0][0] < this.buffers[index].live[0][0];
      if (this.together(index, other)) found.inPlace.push(other);
      else (first ? found.before : found.after).push(other);
    }
    return found;
  }
}

// ------------------------------------------------------------------------------------- words

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

// What bytes are multiples of, a product of dimensions, and the value that is chosen for it.
const each = { unit: "", value: null };

function scaledBytes(value) {
  return value * (each.value ?? 1);
}

function bytesText(value) {
  let unit = 0, scaled = scaledBytes(value);
  while (Math.abs(scaled) >= 1024 && unit + 1 < UNITS.length) { scaled /= 1024; unit++; }
  const digits = unit === 0 || scaled >= 100 ? 0 : scaled >= 10 ? 1 : 2;
  return `${String(Number(scaled.toFixed(digits)))} ${UNITS[unit]}`;
}

function countText(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, ",");
}

function exactText(value) {
  const bytes = scaledBytes(value);
  const text = bytes < 1024 ? `${bytes} B` : `${bytesText(value)} (${countText(bytes)} B)`;
  return text + eachText();
}

// Behind bytes for each of a product of dimensions, while no value is chosen for it.
function eachText() {
  return each.unit && each.value === null ? ` × ${each.unit}` : "";
}

function shareText(part, whole) {
  if (!whole) return "";
  const percent = (100 * part) / whole;
  return percent > 0 && percent < 0.1 ? "<0.1%" : `${percent.toFixed(percent < 10 ? 1 : 0)}%`;
}
