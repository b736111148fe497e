// Draws one plan as SVG. Its colours are variables of the page's style, so that they follow the
// theme of the system; a picture that is saved has their values.

const AXIS = 22; // Pixels of the byte axis above each map, and of the same gap elsewhere.
const MOST_NAMES = 500;
const FONT = "11px system-ui, 'DejaVu Sans', sans-serif";

const DEFS = `<defs>${[["lines", "--faint", 7, "M-1 8L8 -1"], ["cross", "--faint", 7,
  "M-1 8L8 -1M-1 -1L8 8"], ["reserved", "--faint", 10, "M-1 11L11 -1"], ["inplace", "--ink", 6,
  "M-1 7L7 -1"]].map(([id, colour, size, path]) => `<pattern id="${id}" width="${size}" height="${
  size}" patternUnits="userSpaceOnUse"><path d="${path}" stroke="var(${colour})"/></pattern>`)
  .join("")}</defs>`;

const ruler = document.createElement("canvas").getContext("2d");
ruler.font = FONT;
function widthOf(text) { return ruler.measureText(text).width; }

function escaped(text) { return text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`); }

function rectangle(x, y, width, height, style) {
  return `<rect x="${x}" y="${y}" width="${Math.max(0, width)}" height="${Math.max(0, height)}" ` +
    `style="${style}"/>`;
}

function path(d, style) { return d && `<path d="${d}" style="${style}"/>`; }

function line(x, y, right, bottom, colour, width = 1, dashes = "none") {
  return path(`M${x} ${y}L${right} ${bottom}`,
    `stroke:${colour};stroke-width:${width};stroke-dasharray:${dashes}`);
}

function label(x, y, text, colour, font = FONT) {
  return `<text x="${x}" y="${y}" dy="4" style="fill:${colour};font:${font};white-space:pre">` +
    `${escaped(text)}</text>`;
}

// Text on a ground of its own, so that nothing runs through it.
function grounded(x, y, text, colour, ground) {
  return rectangle(x - 2, y - 7, widthOf(text) + 4, 14, `fill:${ground}`) +
    label(x, y, text, colour);
}

// The text, cut where it has no room; empty where nothing of it would be left. The last words of a
// name with several say more than the first, which many names have in common.
function fitted(text, room) {
  const words = text.split(/(?<=[./ ])(?=[^./ [])/), last = words.at(-1);
  const shorter = words.slice(1).map((_, at) => `…${words.slice(at + 1).join("")}`);
  for (let keep = last.length - 1; keep > 2; keep--) shorter.push(`${last.slice(0, keep)}…`);
  return [text, ...shorter].find((one) => widthOf(one) <= room) ?? "";
}

class PlanDrawing {
  constructor(page, plan, body) {
    Object.assign(this, { page, memory: page.memory, view: page.view, plan, body });
  }
  draw() {
    const { clientWidth: width, clientHeight: height } = this.body;
    Object.assign(this, { width, height, named: [] });
    const [lines, names] = this.levels(), sharers = this.memory.sharers(this.page.chosen, this.plan);
    this.body.innerHTML = `<svg width="${width}" height="${height}">${[this.ground(), this.boxes(),
      this.inPlace(), this.rules(), this.peakLine(), lines, this.names(), this.marked(sharers),
      this.arrows(sharers), names, this.axis()].join("")}</svg>`;
  }
  x(byte) { return this.view.bytes.pixel(byte); }
  y(row) { return this.view.rows.pixel(row); }
  // Bytes from one to another, in all rows or in some.
  area(begin, end, fill, top = AXIS, bottom = this.height) {
    return rectangle(this.x(begin), top, this.x(end) - this.x(begin), bottom - top, `fill:${fill}`);
  }
  ground() {
    const { capacity } = this.memory.given, end = this.view.bytes.at(this.width);
    const parts = this.plan.reserved.flatMap(([low, high]) =>
      ["var(--reserved)", "url(#reserved)"].map((fill) => this.area(low, high, fill)));
    if (capacity !== null && capacity < end) parts.push(this.area(capacity, end, "var(--over)"));
    const bands = this.page.bands.map(([top, bottom]) => rectangle(0, this.y(top), this.width,
      this.y(bottom) - this.y(top), "fill:var(--band)"));
    return [...parts, ...bands].join("");
  }
  frame(box) {
    const x = this.x(box.x0), y = this.y(box.y0);
    // At least a pixel, so that nothing disappears.
    return [x, y, Math.max(1, this.x(box.x1) - x), Math.max(1, this.y(box.y1) - y)];
  }
  inSight(box) {
    const [x, y, wide, high] = this.frame(box);
    return x <= this.width && x + wide >= 0 && y <= this.height && y + high >= AXIS;
  }
  // The boxes of one class are one path: there may be thousands.
  boxes() {
    const [, , classes, classOf] = this.page.way, groups = classes.map(() => ["", "", ""]);
    for (const box of this.plan.all) {
      if (!this.inSight(box)) continue;
      const at = classOf(this.plan, box.index), [x, y, wide, high] = this.frame(box);
      const shape = `M${x} ${y}h${wide}v${high}h${-wide}z`;
      groups[at][0] += shape;
      if (wide > 4 && high > 4) groups[at][1] += shape;
      if (wide > 3 && high > 3) {
        groups[at][2] += `M${x + 0.5} ${y + 0.5}h${wide - 1}v${high - 1}h${1 - wide}z`;
      }
      if (wide > 26 && high > 11) this.named.push([box, classes[at], wide * high]);
    }
    return groups.map(([all, large, edged], at) => {
      const { fill, pattern, border } = classes[at];
      const edge = border ? "var(--ink);stroke-width:1.6" : "var(--faint);stroke-width:.8";
      return path(all, `fill:${fill}`) + (pattern ? path(large, `fill:url(#${pattern})`) : "") +
        path(edged, `fill:none;stroke:${edge}`);
    }).join("");
  }
  // A name, its size, its type and shape, as far as there is room.
  names() {
    this.named.sort((one, two) => two[2] - one[2]);
    return this.named.slice(0, MOST_NAMES).map(([box, { fill, ink }]) => {
      const { name, label: short, size, type } = this.memory.buffers[box.index];
      const left = Math.max(this.x(box.x0), 0) + 4, room = Math.min(this.x(box.x1), this.width) - 4 - left;
      const top = Math.max(this.y(box.n0), AXIS), bottom = Math.min(this.y(box.n1), this.height);
      const slot = this.plan.offsets[box.index].length > 1 ? ` [${box.slot}]` : "";
      const shown = room < 14 || bottom - top < 11 ? "" : fitted((short || name) + slot, room);
      if (!shown) return "";
      const more = [bytesText(size), type].filter((text) => text && widthOf(text) < room)
        .slice(0, Math.floor((bottom - top - 16) / 13));
      const first = (top + bottom) / 2 - 6.5 * more.length;
      return [shown, ...more].map((text, at) =>
        grounded(left, first + 13 * at, text, ink, fill)).join("");
    }).join("");
  }
  // Hatched: where an in-place pair has the same bytes at the same time.
  inPlace() {
    const { rows } = this.memory;
    return this.plan.shared.map(([begin, low, end, high]) => {
      const top = this.y(rows.top(begin)), bottom = this.y(rows.bottom(end)), right = this.x(high);
      const mark = right - this.x(low) > 14
        ? `M${right - 14} ${(top + bottom) / 2 - 4}h10l-5 8z` : "";
      return this.area(low, high, "url(#inplace);opacity:.45", top, bottom) +
        path(mark, "fill:var(--ink)");
    }).join("");
  }
  // Barriers: a double line, which nothing that shares bytes crosses.
  rules() {
    return (this.memory.rows.listing?.rules ?? []).flatMap((row) => [-2, 1].map((by) =>
      rectangle(0, this.y(row) + by, this.width, 1, "fill:var(--ink)"))).join("");
  }
  marked({ before, inPlace, after }) {
    const { page } = this, outline = (indices, width, dashes) => indices
      .flatMap((index) => this.plan.of[index] ?? []).filter((box) => this.inSight(box))
      .map((box) => rectangle(...this.frame(box), "fill:none;stroke:var(--chosen);" +
        `stroke-width:${width};stroke-dasharray:${dashes}`)).join("");
    return outline(page.matches, 1.5, "2 2") + outline(page.touched, 2, "none") +
      outline([...before, ...inPlace, ...after], 1.5, "5 3") +
      outline([page.chosen, page.hovered], 3, "none");
  }
  // From buffers that the chosen one takes bytes over from, and to those that take them next.
  arrows({ before, after }) {
    const { chosen } = this.page, middle = ({ x0, x1 }) => this.x((x0 + x1) / 2);
    const pairs = [...before.map((from) => [from, chosen]), ...after.map((to) => [chosen, to])];
    return pairs.map(([from, to]) => {
      const cost = this.plan.paid.find((paid) => paid.includes(from) && paid.includes(to))?.[2];
      const source = this.plan.of[from], [result] = this.plan.of[to];
      const x = middle(source[0]), y = this.y(source.at(-1).y1);
      const right = middle(result), bottom = this.y(result.y0);
      const angle = Math.atan2(bottom - y, right - x), colour = cost ? "var(--peak)" : "var(--ink)";
      const tip = [-0.45, 0.45].map((turn) =>
        `L${right - 9 * Math.cos(angle + turn)} ${bottom - 9 * Math.sin(angle + turn)}`);
      return line(x, y, right, bottom, colour, cost ? 2 : 1.2, cost ? "6 3" : "none") +
        path(`M${right} ${bottom}${tip.join("")}z`, `fill:${colour}`) + (cost ? grounded((x + right) / 2,
          (y + bottom) / 2, `costs ${countText(cost)}`, colour, "var(--paper)") : "");
    }).join("");
  }
  peakLine() {
    const [y, ...others] = this.plan.peakPlaces.map((at) => this.y(this.memory.rows.top(at)));
    const end = this.width;
    return line(0, y, end, y, "var(--peak)", 1, "3 3") + [y, ...others].map((top) =>
      rectangle(end - 6, Math.round(top), 6, 1, "fill:var(--peak)")).join("") +
      path(`M${end} ${y - 6}v12l-8 -6z`, "fill:var(--peak)");
  }
  // Lines, which run below the names of buffers, and their names at the bottom, over a ground of
  // their own. Equal levels have one name, where there is room for it.
  levels() {
    const { given: { bound, capacity }, top } = this.memory, said = [];
    const known = [["bound", bound, "2 2"], ["peak", this.plan.peak, "6 3"], ["capacity", capacity, "none"]]
      .filter(([, value]) => value !== null && value <= top && this.x(value) >= 0 &&
        this.x(value) <= this.width + 1);
    for (const [name, value] of known) {
      const same = said.find((one) => one.value === value), text = same && `${same.text} = ${name}`;
      const hasRoom = same && widthOf(`${text} ${bytesText(value)}`) <= this.width - 8;
      if (hasRoom) Object.assign(same, { text, name });
      else said.push({ text: name, value, name });
    }
    const lines = known.map(([name, value, dashes]) => line(this.x(value), AXIS, this.x(value),
      this.height, `var(--${name})`, 1.5, dashes));
    const names = said.sort((a, b) => b.value - a.value).map(({ text, value, name }, at) => {
      const shown = fitted(`${text} ${bytesText(value)}`, this.width - 8);
      const left = Math.max(2, this.x(value) - widthOf(shown) - 6);
      return grounded(left, this.height - 10 - 15 * at, shown, `var(--${name})`, "var(--paper)");
    });
    return [lines.join(""), names.join("")];
  }
  axis() {
    const { bytes } = this.view, parts = [rectangle(0, 0, this.width, AXIS, "fill:var(--raised)")];
    let step = 1;
    while (step * bytes.scale < 64) step *= 2;
    const first = Math.ceil(Math.max(0, bytes.at(0)) / step) * step;
    for (let byte = first; this.x(byte) < this.width; byte += step) {
      const x = this.x(byte), text = bytesText(byte);
      parts.push(rectangle(x, AXIS - 5, 1, 5, "fill:var(--faint)"));
      if (x + widthOf(text) + 4 < this.width) parts.push(label(x + 3, 10, text, "var(--faint)"));
    }
    return parts.join("") + rectangle(0, AXIS - 1, this.width, 1, "fill:var(--faint)");
  }
  // The buffer under a point of the map, that of the smallest box; null if there is none.
  hit(x, y) {
    let found = null, least = Infinity;
    for (const box of y < AXIS ? [] : this.plan.all) {
      const [left, top, wide, high] = this.frame(box);
      if (x < left || x > left + wide || y < top || y > top + high) continue;
      if (wide * high < least) { found = box.index; least = wide * high; }
    }
    return found;
  }
}

// The bytes that are live, beside the rows.
function liveBytes(memory, { rows }, width, height) {
  const scale = (width - 6) / Math.max(1, memory.mostLive);
  const bars = memory.profile.map(([top, end, bytes]) => [rows.pixel(top), rows.pixel(end), bytes])
    .filter(([top, bottom]) => bottom > AXIS && top < height).map(([top, bottom, bytes]) =>
      `M0 ${Math.max(AXIS, top)}h${bytes * scale}V${Math.max(bottom, top + 1)}H0z`).join("");
  return path(bars, "fill:var(--box)") + label(3, 12, `to ${bytesText(memory.mostLive)}`,
    "var(--faint)") + rectangle(0, AXIS - 1, width, 1, "fill:var(--faint)");
}
