// What part of a map is shown: rows down, bytes across. All columns of the page share it.

const LEAST_LINE = 18; // Pixels of a line that is easy to read.

class View {
  constructor() {
    Object.assign(this, { row: 0, rowPixels: LEAST_LINE, byte: 0, bytePixels: 1 });
    Object.assign(this, { height: 100, width: 100 }); // Of a plan, without its axis
  }
  fit(memory, rowPixels = null) {
    this.leastRow = Math.max(20, this.height - 8) / memory.rows.total;
    this.rowPixels = rowPixels ?? this.leastRow;
    this.fitBytes(memory);
    this.keep(memory);
    Object.assign(this, { row: 0, byte: 0 });
  }
  fitBytes(memory) {
    this.leastByte = Math.max(1, this.width - 16) / (memory.top * 1.04);
    this.bytePixels = this.leastByte;
  }
  // The height of a row within what can be looked at.
  allowed(pixels) {
    const most = Math.max(80, 400 * this.leastRow), least = Math.min(this.leastRow, LEAST_LINE);
    return Math.min(most, Math.max(least, pixels));
  }
  keep(memory) {
    this.rowPixels = this.allowed(this.rowPixels);
    this.bytePixels = Math.max(this.leastByte, Math.min(this.bytePixels, this.width));
    const rows = this.height / this.rowPixels, bytes = this.width / this.bytePixels;
    this.row = Math.max(0, Math.min(this.row, memory.rows.total + 2 - rows));
    this.byte = Math.max(0, Math.min(this.byte, memory.top * 1.04 + 16 / this.bytePixels - bytes));
  }
  x(byte) { return (byte - this.byte) * this.bytePixels + 4; }
  y(row) { return (row - this.row) * this.rowPixels + AXIS; }
  rowAt(y) { return this.row + y / this.rowPixels; }
  byteAt(x) { return this.byte + x / this.bytePixels; }
  zoomRows(factor, y) {
    const row = this.rowAt(y);
    this.rowPixels = this.allowed(this.rowPixels * factor);
    this.row = row - y / this.rowPixels;
  }
  zoomBytes(factor, x) {
    const byte = this.byteAt(x);
    this.bytePixels = Math.max(this.leastByte, this.bytePixels * factor);
    this.byte = byte - x / this.bytePixels;
  }
  // Brings rows into sight, in the middle where they are not.
  reveal(top, bottom) {
    const last = this.rowAt(this.height), there = last - this.row;
    if (top >= this.row && bottom <= last) return;
    if (bottom > this.row && top < last && bottom - top > there) return;
    this.row = bottom - top > there ? top - 1 : (top + bottom) / 2 - there / 2;
  }
  revealBytes(low, high) {
    const there = this.width / this.bytePixels;
    if (low >= this.byte && high <= this.byte + there) return;
    this.byte = high - low > there ? low - 4 / this.bytePixels : (low + high) / 2 - there / 2;
  }
}
