// What colours and patterns say. Each way of colouring has a legend, and none is needed to read
// the map: patterns, borders and names say the same.

// Paul Tol's light colours (SRON/EPS/TN/09-002), told apart by colour-blind readers.
const PALETTE = ["#77aadd", "#eedd88", "#ee8866", "#99ddff", "#44bb99", "#ffaabb", "#aaaa00",
  "#dddddd", "#bbcc33"];
const DARK_TEXT = "#14181d";

function paletteClass(at, label) {
  return { fill: PALETTE[at % PALETTE.length], ink: DARK_TEXT, label, pattern: null };
}

const LEVELS = [
  { level: 2, label: "level 2: shares with nothing on another pipe", pattern: null },
  { level: 1, label: "level 1: shares in step", pattern: "lines" },
  { level: 0, label: "level 0: shares wherever lives allow", pattern: "cross" },
];

class Colours {
  constructor(memory) {
    this.memory = memory;
    this.ways = [["peak", "what is live at the peak"]];
    if (memory.plans.some((plan) => plan.levels)) this.ways.push(["level", "reuse level"]);
    if (memory.buffers.some((buffer) => buffer.pipes.length)) this.ways.push(["pipe", "pipes"]);
    this.ways.push(["size", "size"]);
  }
  // For one plan: the classes, and the class of each buffer.
  of(plan, way, theme) {
    const plain = (label) => ({ fill: theme.box, ink: theme.boxInk, label, pattern: null });
    const buffers = this.memory.buffers;
    if (way === "peak") {
      const live = new Set(plan.peakLive);
      const classes = [plain("not live at the peak"), {
        fill: theme.strong, ink: theme.strongInk, pattern: null, border: true,
        label: "live at the peak of its plan (thick border)",
      }];
      return { classes, of: (at) => (live.has(at) ? 1 : 0) };
    }
    if (way === "level" && plan.levels) {
      const classes = LEVELS.map(({ label, pattern }, at) => ({
        fill: [theme.box, PALETTE[1], PALETTE[2]][at], ink: at ? DARK_TEXT : theme.boxInk,
        label, pattern,
      }));
      return { classes, of: (at) => 2 - plan.levels[at][0] };
    }
    if (way === "pipe") {
      const names = [...new Set(buffers.map((buffer) => buffer.pipes.join(" + ")))];
      return {
        classes: names.map((name, at) => paletteClass(at, name || "no pipe")),
        of: (at) => names.indexOf(buffers[at].pipes.join(" + ")),
      };
    }
    const edges = [1 / 4, 1 / 16, 1 / 64, 0].map((part) => part * this.memory.top);
    const names = ["a quarter of the map or more", "a 16th or more", "a 64th or more", "less"];
    const shades = [PALETTE[2], PALETTE[1], PALETTE[0], PALETTE[7]];
    return {
      classes: names.map((label, at) => ({ fill: shades[at], ink: DARK_TEXT, label, pattern: null })),
      of: (at) => edges.findIndex((edge) => buffers[at].size >= edge),
    };
  }
}

// Diagonal lines within a rectangle. They are anchored to the canvas, so that neighbours match, and
// begin a path of their own: a caller has to stroke its path before, or begin it behind this.
function hatch(context, left, top, right, bottom, colour, step, crossed) {
  if (left >= right || top >= bottom) return;
  context.save();
  context.beginPath();
  context.rect(left, top, right - left, bottom - top);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  for (let sum = Math.floor((left + top) / step) * step; sum < right + bottom; sum += step) {
    context.moveTo(sum - bottom, bottom);
    context.lineTo(sum - top, top);
  }
  const last = crossed ? right - top : -Infinity;
  for (let gap = Math.floor((left - bottom) / step) * step; gap < last; gap += step) {
    context.moveTo(gap + top, top);
    context.lineTo(gap + bottom, bottom);
  }
  context.stroke();
  context.restore();
}
