// Draws one plan on its canvas.

const AXIS = 22; // Pixels of the byte axis above each map, and of the same gap elsewhere.
const MOST_NAMES = 600;

function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}

class PlanDrawing {
  constructor(memory, plan, canvas) {
    Object.assign(this, { memory, plan, canvas });
  }
  draw(view, state, theme) {
    const [context, width, height] = prepare(this.canvas);
    Object.assign(this, { context, width, height, view, state, theme });
    context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    context.textBaseline = "middle";
    context.save();
    context.beginPath();
    context.rect(0, AXIS, width, height - AXIS);
    context.clip();
    this.ground();
    const named = this.boxes();
    this.inPlace();
    this.rules();
    this.names(named);
    this.marked();
    this.arrows();
    this.peakLine();
    context.restore();
    this.levels();
    this.axis();
  }
  x(byte) { return this.view.x(byte) + 4; }
  y(row) { return this.view.y(row) + AXIS; }
  ground() {
    const { context, theme, memory } = this, scope = memory.scope;
    for (const [begin, end] of this.plan.reserved) {
      const x = this.x(begin), width = this.x(end) - x;
      context.fillStyle = theme.reserved;
      context.fillRect(x, AXIS, width, this.height);
      this.hatched(x, AXIS, width, this.height, theme.faint, 10);
    }
    if (scope.capacity !== null && this.x(scope.capacity) < this.width) {
      context.fillStyle = theme.over;
      context.fillRect(this.x(scope.capacity), AXIS, this.width, this.height);
    }
    context.fillStyle = theme.band;
    for (const [top, bottom] of this.state.bands) {
      context.fillRect(0, this.y(top), this.width, this.y(bottom) - this.y(top));
    }
  }
  // The boxes in sight, those of one class after another.
  visible() {
    const { boxes } = this.plan, { view } = this, found = this.state.colouring(this.plan);
    const groups = found.classes.map(() => []);
    const top = view.rowAt(0), bottom = view.rowAt(this.height), left = view.byteAt(-4);
    const right = view.byteAt(this.width);
    for (let at = 0; at < boxes.length; at++) {
      if (boxes.y1[at] < top || boxes.y0[at] > bottom) continue;
      if (boxes.x1[at] < left || boxes.x0[at] > right) continue;
      groups[found.of(boxes.buffer[at])].push(at);
    }
    return found.classes.map((kind, at) => [kind, groups[at]]);
  }
  frame(at) {
    const { boxes } = this.plan;
    const x = this.x(boxes.x0[at]), y = this.y(boxes.y0[at]);
    // At least a pixel, so that nothing disappears.
    return [x, y, Math.max(1, this.x(boxes.x1[at]) - x), Math.max(1, this.y(boxes.y1[at]) - y)];
  }
  // Only what is in sight: a box may be many times as large as the canvas.
  hatched(x, y, width, height, colour, step, crossed = false) {
    hatch(this.context, Math.max(x, 0), Math.max(y, AXIS), Math.min(x + width, this.width),
      Math.min(y + height, this.height), colour, step, crossed);
  }
  boxes() {
    const { context, theme } = this, named = [];
    for (const [kind, group] of this.visible()) {
      context.fillStyle = kind.fill;
      for (const at of group) {
        const [x, y, width, height] = this.frame(at);
        context.fillRect(x, y, width, height);
        if (width > 26 && height > 11) named.push([at, kind, x, y, width, height]);
        if (kind.pattern && width > 4 && height > 4) {
          this.hatched(x, y, width, height, theme.faint, 7, kind.pattern === "cross");
        }
      }
      context.strokeStyle = kind.border ? theme.ink : theme.faint;
      context.lineWidth = kind.border ? 1.6 : 0.8;
      context.beginPath();
      for (const at of group) {
        const [x, y, width, height] = this.frame(at);
        if (width > 3 && height > 3) context.rect(x + 0.5, y + 0.5, width - 1, height - 1);
      }
      context.stroke();
    }
    return named;
  }
  names(named) {
    const { context } = this, { boxes } = this.plan;
    named.sort((a, b) => b[4] * b[5] - a[4] * a[5]);
    for (const [at, kind, x, , width] of named.slice(0, MOST_NAMES)) {
      const left = Math.max(x, 0) + 4, right = Math.min(x + width, this.width) - 4;
      const top = Math.max(this.y(boxes.n0[at]), AXIS);
      const bottom = Math.min(this.y(boxes.n1[at]), this.height), room = right - left;
      const shown = room < 14 || bottom - top < 11 ? "" : fitted(context, this.label(at), room);
      if (!shown) continue;
      const size = bytesText(this.memory.buffers[boxes.buffer[at]].size);
      const two = bottom - top > 30 && context.measureText(size).width < room;
      const middle = (top + bottom) / 2 - (two ? 6.5 : 0);
      this.name(shown, kind, left, middle, 1);
      if (two) this.name(size, kind, left, middle + 13, 0.8);
    }
  }
  // On a ground of its own, so that no pattern runs through it.
  name(text, kind, x, y, alpha) {
    const { context } = this;
    context.fillStyle = kind.fill;
    context.fillRect(x - 2, y - 6, context.measureText(text).width + 4, 12);
    context.globalAlpha = alpha;
    context.fillStyle = kind.ink;
    context.fillText(text, x, y);
    context.globalAlpha = 1;
  }
  label(at) {
    const { boxes, offsets } = this.plan, index = boxes.buffer[at];
    const name = this.memory.short[index];
    return offsets[index].length > 1 ? `${name} [${boxes.slot[at]}]` : name;
  }
  // Hatched: where an in-place pair has the same bytes at the same time.
  inPlace() {
    const { boxes } = this.plan, { context } = this;
    context.globalAlpha = 0.45;
    for (const [one, two, top, bottom] of boxes.shared) {
      if (this.y(bottom) < AXIS || this.y(top) > this.height) continue;
      const x = this.x(boxes.x0[two]), width = this.x(Math.min(boxes.x1[one], boxes.x1[two])) - x;
      this.hatched(x, this.y(top), width, this.y(bottom) - this.y(top), this.theme.ink, 6);
    }
    context.globalAlpha = 1;
    for (const [, two, top, bottom] of boxes.shared) {
      const right = this.x(boxes.x1[two]);
      if (right - this.x(boxes.x0[two]) > 14) this.triangle(right - 9, this.y((top + bottom) / 2) + 3);
    }
  }
  // Barriers: a double line, which nothing that shares bytes crosses.
  rules() {
    const { context, theme } = this;
    context.fillStyle = theme.ink;
    for (const line of this.memory.rows.listing?.rules ?? []) {
      const y = this.y(line);
      if (y < AXIS || y > this.height) continue;
      context.fillRect(0, y - 2, this.width, 1);
      context.fillRect(0, y + 1, this.width, 1);
    }
  }
  triangle(x, y) {
    const { context } = this;
    context.fillStyle = this.theme.ink;
    context.beginPath();
    context.moveTo(x - 5, y - 7);
    context.lineTo(x + 5, y - 7);
    context.lineTo(x, y + 1);
    context.fill();
  }
  marked() {
    const { context, state, theme } = this;
    const outline = (index, width, dashes) => {
      context.strokeStyle = theme.chosen;
      context.lineWidth = width;
      context.setLineDash(dashes);
      for (const at of this.plan.boxes.of[index] ?? []) {
        const [x, y, wide, high] = this.frame(at);
        context.strokeRect(x, y, wide, high);
      }
      context.setLineDash([]);
    };
    for (const index of state.matches) outline(index, 1.5, [2, 2]);
    for (const index of state.touched) outline(index, 2, []);
    for (const index of state.related(this.plan)) outline(index, 1.5, [5, 3]);
    if (state.chosen !== null) outline(state.chosen, 3, []);
    if (state.hovered !== null) outline(state.hovered, 3, []);
  }
  arrows() {
    const { context, theme } = this;
    for (const { from, to, cost } of this.state.arrows(this.plan)) {
      const one = this.plan.boxes.of[from][0], two = this.plan.boxes.of[to][0];
      if (one === undefined || two === undefined) continue;
      const last = this.plan.boxes.of[from].at(-1);
      const begin = [(this.x(this.plan.boxes.x0[one]) + this.x(this.plan.boxes.x1[one])) / 2,
        this.y(this.plan.boxes.y1[last])];
      const end = [(this.x(this.plan.boxes.x0[two]) + this.x(this.plan.boxes.x1[two])) / 2,
        this.y(this.plan.boxes.y0[two])];
      const angle = Math.atan2(end[1] - begin[1], end[0] - begin[0]);
      context.strokeStyle = context.fillStyle = cost ? theme.peak : theme.ink;
      context.lineWidth = cost ? 2 : 1.2;
      context.setLineDash(cost ? [6, 3] : []);
      context.beginPath();
      context.moveTo(...begin);
      context.lineTo(...end);
      context.stroke();
      context.setLineDash([]);
      context.beginPath();
      context.moveTo(...end);
      for (const turn of [-0.45, 0.45]) {
        context.lineTo(end[0] - 9 * Math.cos(angle + turn), end[1] - 9 * Math.sin(angle + turn));
      }
      context.fill();
      if (cost) {
        const text = `costs ${countText(cost)}`;
        const x = (begin[0] + end[0]) / 2, y = (begin[1] + end[1]) / 2;
        context.fillStyle = theme.paper;
        context.fillRect(x - 2, y - 7, context.measureText(text).width + 4, 14);
        context.fillStyle = theme.peak;
        context.fillText(text, x, y);
      }
    }
  }
  peakLine() {
    const { context, theme } = this, y = this.y(this.plan.peakRow);
    context.strokeStyle = context.fillStyle = theme.peak;
    context.lineWidth = 1;
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(0, y);
    context.lineTo(this.width, y);
    context.stroke();
    context.setLineDash([]);
    context.beginPath();
    context.moveTo(this.width, y - 6);
    context.lineTo(this.width, y + 6);
    context.lineTo(this.width - 8, y);
    context.fill();
    for (const place of this.plan.peakPlaces) {
      const at = this.y(this.memory.rows.top(place));
      if (at >= AXIS && at < this.height) context.fillRect(this.width - 6, at, 6, 1);
    }
  }
  levels() {
    const { context, theme, memory, plan } = this;
    const levels = [
      ["bound", memory.scope.bound, theme.bound, [2, 2], 1.5],
      ["peak", plan.peak, theme.peak, [6, 3], 1.5],
    ];
    if (memory.scope.capacity !== null && memory.scope.capacity <= memory.top) {
      levels.push(["capacity", memory.scope.capacity, theme.capacity, [], 2]);
    }
    for (const [, value, colour, dashes, width] of levels) {
      const x = this.x(value);
      if (x < 0 || x > this.width) continue;
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.setLineDash(dashes);
      context.beginPath();
      context.moveTo(x, AXIS);
      context.lineTo(x, this.height);
      context.stroke();
      context.setLineDash([]);
    }
    this.levelNames(levels);
  }
  // At the bottom, each name on its own height and over a ground of its own.
  levelNames(levels) {
    const { context, theme } = this, joined = new Map();
    for (const [name, value, colour] of levels) {
      const known = joined.get(value);
      joined.set(value, { colour, name: known ? `${known.name} = ${name}` : name });
    }
    let y = this.height - 10;
    for (const [value, { name, colour }] of [...joined].sort((a, b) => b[0] - a[0])) {
      const x = this.x(value);
      if (x < 0 || x > this.width + 1) continue;
      const text = `${name} ${bytesText(value)}`, width = context.measureText(text).width;
      const left = Math.max(2, x - width - 6);
      context.fillStyle = theme.paper;
      context.fillRect(left - 2, y - 7, width + 5, 14);
      context.fillStyle = colour;
      context.fillText(text, left, y);
      y -= 15;
    }
  }
  axis() {
    const { context, theme, view } = this;
    context.fillStyle = theme.raised;
    context.fillRect(0, 0, this.width, AXIS);
    context.fillStyle = context.strokeStyle = theme.faint;
    context.lineWidth = 1;
    let step = 1;
    while (step * view.bytePixels < 64) step *= 2;
    const first = Math.ceil(Math.max(0, view.byteAt(-4)) / step) * step;
    for (let byte = first; this.x(byte) < this.width; byte += step) {
      const x = this.x(byte), text = bytesText(byte);
      context.fillRect(x, AXIS - 5, 1, 5);
      if (x + context.measureText(text).width + 4 < this.width) context.fillText(text, x + 3, 10);
    }
    context.fillRect(0, AXIS - 1, this.width, 1);
  }
  // The buffer and slot under a point of the canvas, the smallest one; null if there is none.
  hit(x, y) {
    const { boxes } = this.plan;
    if (!this.view || y < AXIS) return null;
    let found = null, least = Infinity;
    for (let at = 0; at < boxes.length; at++) {
      const [left, top, width, height] = this.frame(at);
      if (x < left || x > left + width || y < top || y > top + height) continue;
      if (width * height < least) { found = at; least = width * height; }
    }
    return found === null ? null : boxes.buffer[found];
  }
}

// The text, cut where it has no room; empty where nothing of it would be left. The last words of a
// name with several say more than the first, which many names have in common.
function fitted(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  const words = text.split("+")[0].split(/(?<=[./])(?=[^./])/);
  let end = text;
  for (let from = 0; from < words.length - 1; from++) {
    end = (from ? "…" : "") + words.slice(from).join("");
    if (context.measureText(end).width <= room) return end;
  }
  let keep = Math.floor((end.length * room) / context.measureText(end).width) - 1;
  while (keep > 2 && context.measureText(`${end.slice(0, keep)}…`).width > room) keep--;
  return keep > 2 ? `${end.slice(0, keep)}…` : "";
}

function drawLive(canvas, memory, view, theme) {
  const [context, width, height] = prepare(canvas);
  const scale = (width - 6) / Math.max(1, memory.mostLive);
  context.fillStyle = theme.box;
  context.beginPath();
  context.moveTo(0, 0);
  for (const [top, bottom, bytes] of memory.profile) {
    const y0 = view.y(top) + AXIS, y1 = view.y(bottom) + AXIS;
    if (y1 < AXIS || y0 > height) continue;
    context.rect(0, Math.max(AXIS, y0), bytes * scale, Math.max(1, y1 - Math.max(AXIS, y0)));
  }
  context.fill();
  context.fillStyle = theme.faint;
  context.fillRect(0, AXIS - 1, width, 1);
  context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  context.fillText(`to ${bytesText(memory.mostLive)}`, 3, 13);
}
