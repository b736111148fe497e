// The data of one memory, ready to draw: where each slot is, in bytes and in lines.

const DATA = JSON.parse(document.getElementById("data").textContent);

// Rows of the vertical axis: lines of the program, or positions where there is no program. Several
// positions of one line share its height, so that boxes overlap only where buffers do.
class Rows {
  constructor({ listing, begin, end }) {
    this.listing = DATA.listings[listing] ?? null;
    this.begin = this.listing ? 0 : begin;
    this.lineOf = this.listing?.lineOf ?? Array.from({ length: Math.max(1, end - begin) }, (_, at) => at);
    this.total = this.listing?.lines.length ?? this.lineOf.length;
    this.tops = [];
    for (let first = 0, next = 0; first < this.lineOf.length; first = next) {
      while (this.lineOf[next] === this.lineOf[first]) next++;
      for (let at = first; at < next; at++) this.tops.push([at - first, at - first + 1]
        .map((part) => this.lineOf[first] + part / (next - first)));
    }
  }
  index(position) { return Math.max(0, Math.min(position - this.begin, this.tops.length - 1)); }
  line(position) { return this.lineOf[this.index(position)]; }
  top(position) { return this.tops[this.index(position)][0]; }
  bottom(end) { return this.tops[this.index(end - 1)][1]; }
  // The name of a row, for people.
  name(position) {
    return this.listing ? `line ${this.line(position) + 1}` : `position ${position}`;
  }
}

class Memory {
  // With a value for the dimensions that bytes are multiples of, or null.
  constructor(at, value = null) {
    const given = value === null ? DATA.memories[at] : scaled(DATA.memories[at], value);
    const { buffers, capacity } = given, rows = new Rows(given);
    Object.assign(this, { at, given, buffers, rows, each: given.unit && ` × ${given.unit}` });
    this.plans = given.plans.map((plan) => {
      const all = plan.slots.map(([index, slot, x0, x1, begin, end, first, last]) => ({ index, slot,
        x0, x1, y0: rows.top(begin), y1: rows.bottom(end), n0: rows.top(first), n1: rows.bottom(last) }));
      const of = buffers.map(() => []);
      for (const box of all) of[box.index].push(box);
      return { ...plan, all, of, live: new Set(plan.peakLive) };
    });
    // The rows [top, bottom) of the live ranges of each buffer.
    this.lives = buffers.map(({ live }) => live.map(([begin, end]) => [rows.top(begin), rows.bottom(end)]));
    this.index = new Map(buffers.map((buffer, at) => [buffer.name, at]));
    this.order = buffers.map((_, at) => at)
      .sort((a, b) => buffers[a].live[0][0] - buffers[b].live[0][0] || a - b);
    const top = Math.max(1, given.bound, ...this.plans.map((plan) => plan.peak));
    // A map of a few KiB in a memory of many GiB would be a line at the edge.
    this.top = capacity !== null && capacity <= 2 * top ? Math.max(top, capacity) : top;
    // Steps [top row, bottom row, bytes live]: each slot counted, whether or not it shares in place.
    this.profile = given.live.slice(0, -1).map(([at, bytes], n) =>
      [rows.top(at), rows.bottom(given.live[n + 1][0]), bytes]);
    this.mostLive = this.profile.reduce((most, step) => Math.max(most, step[2]), 0);
  }
  bytesOf(index, plan) { return this.buffers[index].size * plan.offsets[index].length; }
  // The buffers that have bytes in common with one, in a plan: those before, with and after it.
  sharers(index, plan) {
    const found = { before: [], inPlace: [], after: [] };
    if (index === null) return found;
    const { size, live } = this.buffers[index];
    for (const other of size ? this.order : []) {
      const { size: more, live: lives } = this.buffers[other];
      const share = plan.offsets[index].some((low) =>
        plan.offsets[other].some((begin) => low < begin + more && begin < low + size));
      if (other === index || !more || !share) continue;
      const together = live.some(([begin, end]) =>
        lives.some(([first, last]) => begin < last && first < end));
      if (together) found.inPlace.push(other);
      else (lives[0][0] < live[0][0] ? found.before : found.after).push(other);
    }
    return found;
  }
}

// A memory whose bytes are for each of a product of dimensions, with a value for that.
function scaled(given, value) {
  const times = (bytes) => bytes * value;
  return { ...given, unit: "", bound: times(given.bound), noReuse: times(given.noReuse),
    live: given.live.map(([at, bytes]) => [at, times(bytes)]),
    buffers: given.buffers.map((buffer) => ({ ...buffer, size: times(buffer.size) })),
    plans: given.plans.map((plan) => ({ ...plan, peak: times(plan.peak),
      peakOccupied: times(plan.peakOccupied), below: plan.below && [times(plan.below[0]), plan.below[1]],
      offsets: plan.offsets.map((all) => all.map(times)),
      shared: plan.shared.map(([begin, low, end, high]) => [begin, times(low), end, times(high)]),
      slots: plan.slots.map(([index, slot, low, high, ...rows]) =>
        [index, slot, times(low), times(high), ...rows]) })) };
}

// ------------------------------------------------------------------------------------- words

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function bytesText(bytes) {
  let unit = 0, size = bytes;
  while (Math.abs(size) >= 1024 && unit + 1 < UNITS.length) { size /= 1024; unit++; }
  const digits = unit === 0 || size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return `${String(Number(size.toFixed(digits)))} ${UNITS[unit]}`;
}

function countText(value) { return String(value).replace(/\B(?=(\d{3})+$)/g, ","); }

function exactText(bytes) {
  return bytes < 1024 ? `${bytes} B` : `${bytesText(bytes)} (${countText(bytes)} B)`;
}

function shareText(part, whole) {
  if (!whole) return "";
  const percent = (100 * part) / whole;
  return percent > 0 && percent < 0.1 ? "<0.1%" : `${percent.toFixed(percent < 10 ? 1 : 0)}%`;
}
