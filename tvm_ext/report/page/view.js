// What part of a map is shown: rows down, bytes across. All columns of the page share both.

const LEAST_LINE = 18; // Pixels of a line that is easy to read.

// One direction: where it begins, and the pixels of a row or byte, after those of a margin.
class Span {
  constructor(margin) { Object.assign(this, { margin, from: 0, scale: 1 }); }
  // Takes the pixels that there are, all that could be shown, the scale at which that is in sight,
  // and the least and the largest scale.
  limit(length, end, fit, least, most) { Object.assign(this, { length, end, fit, least, most }); }
  at(pixel) { return this.from + (pixel - this.margin) / this.scale; }
  pixel(value) { return (value - this.from) * this.scale + this.margin; }
  get shown() { return this.length / this.scale; }
  keep() {
    this.scale = Math.min(this.most, Math.max(this.least, this.scale));
    this.from = Math.max(0, Math.min(this.from, this.end - this.shown));
  }
  fill(scale = this.fit) { Object.assign(this, { from: 0, scale }); }
  zoom(factor, pixel = this.margin + this.length / 2) {
    const value = this.at(pixel);
    this.scale = Math.min(this.most, Math.max(this.least, this.scale * factor));
    this.from = value - (pixel - this.margin) / this.scale;
  }
  centre(low, high = low) { this.from = (low + high) / 2 - this.shown / 2; }
  // Makes a part nearly fill what is in sight.
  frame(low, high) {
    this.scale = this.length / ((high - low) * 1.6);
    this.keep();
    this.centre(low, high);
  }
  // Brings a part into sight, with so many pixels at least: in the middle where it is not there; or
  // its beginning, if it is too large.
  reveal(low, high, least) {
    this.scale = Math.max(this.scale, least / (high - low));
    this.keep();
    const last = this.from + this.shown, isLarge = high - low > this.shown;
    if (isLarge ? high > this.from && low < last : low >= this.from && high <= last) return;
    if (isLarge) this.from = low - Math.min(1, 4 / this.scale);
    else this.centre(low, high);
  }
}
