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

const BY_PEAK = [kind("not live at the peak"), {
  label: "live at the peak of its plan (thick border)", fill: "var(--strong)",
  ink: "var(--strong-ink)", pattern: null, border: true,
}];

// The ways to colour a memory: a word, its name, the classes, and a plan's class of each buffer.
function waysOf({ buffers, plans, top }) {
  const pipes = buffers.map((buffer) => buffer.pipes.join(" + ")), all = [...new Set(pipes)];
  return [
    ["peak", "what is live at the peak", BY_PEAK, (plan, at) => Number(plan.live.has(at))],
    ["level", "reuse level", LEVELS, (plan, at) => 2 - (plan.levels?.[at][0] ?? 2)],
    ["pipe", "pipes", all.map((name, at) => kind(name || "no pipe", PALETTE[at % PALETTE.length])),
      (_, at) => all.indexOf(pipes[at])],
    ["size", "size", SIZES.map(([, label, colour]) => kind(label, PALETTE[colour])),
      (_, at) => SIZES.findIndex(([part]) => buffers[at].size >= part * top)],
  ].filter(([word]) => (word !== "level" || plans.some((plan) => plan.levels)) &&
    (word !== "pipe" || all.some(Boolean)));
}
