// The data of one memory, ready to draw: where each slot is, in bytes and in lines.

const DATA = JSON.parse(document.getElementById("data").textContent);

// Rows of the vertical axis: lines of the program, or positions where there is no program. Several
// positions of one line share its height, so that boxes overlap only where buffers do.
class Rows {
  constructor({ listing, begin, end }) {
    this.listing = listing === null ? null : DATA.listings[listing];
    this.begin = begin;
    this.total = this.listing ? this.listing.lines.length : Math.max(1, end - begin);
    this.tops = [];
    const lineOf = this.listing?.lineOf ?? [];
    for (let first = 0, next = 0; first < lineOf.length; first = next) {
      while (next < lineOf.length && lineOf[next] === lineOf[first]) next++;
      for (let at = first; at < next; at++) this.tops.push([at - first, at - first + 1]
        .map((part) => lineOf[first] + part / (next - first)));
    }
  }
  clamp(position) { return Math.max(0, Math.min(position, this.tops.length - 1)); }
  line(position) { return this.listing.lineOf[this.clamp(position)]; }
  top(position) { return this.listing ? this.tops[this.clamp(position)][0] : position - this.begin; }
  bottom(end) { return this.listing ? this.tops[this.clamp(end - 1)][1] : end - this.begin; }
  // The name of a row, for people.
  name(position) {
    return this.listing ? `line ${this.line(position) + 1}` : `position ${position}`;
  }
}

// The boxes of a plan, one for each slot and live range; where two that are in place share bytes
// while both are live; and the rows in which a box has its name: those that it shares with no other.
function boxesOf({ buffers, inPlace }, plan, rows) {
  const shared = [], taken = new Map(), of = buffers.map(({ size, live }, index) =>
    plan.offsets[index].flatMap((x0, slot) => (size ? live : []).map(([begin, end]) => {
      const y0 = rows.top(begin), y1 = rows.bottom(end);
      return { index, slot, x0, x1: x0 + size, y0, y1, n0: y0, n1: y1 };
    })));
  for (const [source, result] of inPlace) {
    for (const one of of[source]) {
      for (const two of of[result]) {
        const top = Math.max(one.y0, two.y0), bottom = Math.min(one.y1, two.y1);
        if (one.slot !== two.slot || one.x0 !== two.x0 || top >= bottom) continue;
        shared.push([one, two, top, bottom]);
        one.n1 = Math.min(one.n1, top);
        two.n0 = Math.max(two.n0, bottom);
        taken.set(two, bottom);
      }
    }
  }
  const all = of.flat();
  for (const box of all) {
    if (box.n0 >= box.n1) Object.assign(box, { n0: box.y0, n1: taken.get(box) ?? box.y1 });
  }
  return { of, all, shared };
}

class Memory {
  constructor(given) {
    const { buffers, capacity } = given, rows = new Rows(given);
    Object.assign(this, { given, buffers, rows });
    this.plans = given.plans.map((plan) => ({ ...plan, boxes: boxesOf(given, plan, rows) }));
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
  // The buffers live somewhere in the rows [top, bottom), largest first.
  liveIn(top, bottom) {
    const { rows, plans: [plan] } = this;
    const found = this.order.filter((at) => this.buffers[at].live
      .some(([begin, end]) => rows.top(begin) < bottom && rows.bottom(end) > top));
    return found.sort((a, b) => this.bytesOf(b, plan) - this.bytesOf(a, plan) || a - b);
  }
  bytesOf(index, plan) { return this.buffers[index].size * plan.offsets[index].length; }
  // The buffers that have bytes in common with one, in a plan: those before, with and after it.
  sharers(index, plan) {
    const found = { before: [], inPlace: [], after: [] }, { size, live } = this.buffers[index];
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

// ------------------------------------------------------------------------------------- words

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

// What bytes are multiples of, a product of dimensions, and the value that is chosen for it.
const each = { unit: "", value: null };

function scaledBytes(value) { return value * (each.value ?? 1); }

function bytesText(value) {
  let unit = 0, scaled = scaledBytes(value);
  while (Math.abs(scaled) >= 1024 && unit + 1 < UNITS.length) { scaled /= 1024; unit++; }
  const digits = unit === 0 || scaled >= 100 ? 0 : scaled >= 10 ? 1 : 2;
  return `${String(Number(scaled.toFixed(digits)))} ${UNITS[unit]}`;
}

function countText(value) { return String(value).replace(/\B(?=(\d{3})+$)/g, ","); }

function exactText(value) {
  const bytes = scaledBytes(value);
  const text = bytes < 1024 ? `${bytes} B` : `${bytesText(value)} (${countText(bytes)} B)`;
  return text + eachText();
}

// Follows bytes for each of a product of dimensions, while no value is chosen for it.
function eachText() { return each.unit && each.value === null ? ` × ${each.unit}` : ""; }

function shareText(part, whole) {
  if (!whole) return "";
  const percent = (100 * part) / whole;
  return percent > 0 && percent < 0.1 ? "<0.1%" : `${percent.toFixed(percent < 10 ? 1 : 0)}%`;
}
