// What colours and patterns say. Each way of colouring has a legend, and none is needed to read
// the map: patterns, borders and names say the same.

// Paul Tol's light colours (SRON/EPS/TN/09-002), told apart by colour-blind readers.
const PALETTE = ["#77aadd", "#eedd88", "#ee8866", "#99ddff", "#44bb99", "#ffaabb", "#aaaa00",
  "#dddddd", "#bbcc33"];

function kind(label, fill = "var(--box)", pattern = null) {
  return { label, fill, pattern, ink: fill === "var(--box)" ? "var(--box-ink)" : "#14181d" };
}

const LEVELS = [
  kind("level 2: shares with nothing on another pipe"),
  kind("level 1: shares in step", PALETTE[1], "lines"),
  kind("level 0: shares wherever lives allow", PALETTE[2], "cross"),
];

// By size, of the top of the map: the least share, its label, its colour.
const SIZES = [[1 / 4, "a quarter of the map or more", 2], [1 / 16, "a 16th or more", 1],
  [1 / 64, "a 64th or more", 0], [0, "less", 7]];

const AT_PEAK = {
  label: "live at the peak of its plan (thick border)", fill: "var(--strong)",
  ink: "var(--strong-ink)", pattern: null, border: true,
};

class Colours {
  constructor(memory) {
    this.memory = memory;
    this.pipes = [...new Set(memory.buffers.map(({ pipes }) => pipes.join(" + ")))];
    this.ways = [["peak", "what is live at the peak"]];
    if (memory.plans.some((plan) => plan.levels)) this.ways.push(["level", "reuse level"]);
    if (memory.buffers.some(({ pipes }) => pipes.length)) this.ways.push(["pipe", "pipes"]);
    this.ways.push(["size", "size"]);
  }
  // For one plan: the classes, and the class of each buffer.
  of(plan, way) {
    const { buffers, top } = this.memory, live = new Set(plan.peakLive);
    if (way === "level" && plan.levels) {
      return { classes: LEVELS, of: (at) => 2 - plan.levels[at][0] };
    }
    if (way === "pipe") {
      const named = (name, at) => kind(name || "no pipe", PALETTE[at % PALETTE.length]);
      const of = (at) => this.pipes.indexOf(buffers[at].pipes.join(" + "));
      return { classes: this.pipes.map(named), of };
    }
    if (way === "size") {
      const classes = SIZES.map(([, label, colour]) => kind(label, PALETTE[colour]));
      return { classes, of: (at) => SIZES.findIndex(([part]) => buffers[at].size >= part * top) };
    }
    return { classes: [kind("not live at the peak"), AT_PEAK], of: (at) => (live.has(at) ? 1 : 0) };
  }
}
