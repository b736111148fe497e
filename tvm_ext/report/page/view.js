// What part of a map is shown: rows down, bytes across. All columns of the page share it.

class View {
  constructor() {
    this.row = 0; // The row at the top edge.
    this.rowPixels = 18;
    this.byte = 0; // The byte at the left edge of each plan.
    this.bytePixels = 1;
    this.height = 100;
    this.width = 100;
  }
  // Leaves room on the right for the names of lines.
  fit(memory, rowPixels = null) {
    const all = Math.max(20, this.height - 8) / memory.rows.total;
    this.leastRow = Math.min(all, memory.rows.listing ? 18 : all);
    this.mostRow = Math.max(80, 400 * all);
    this.rowPixels = rowPixels ?? this.leastRow;
    this.row = 0;
    this.leastByte = Math.max(1, this.width - 16) / (memory.top * 1.04);
    this.bytePixels = this.leastByte;
    this.byte = 0;
    this.keep(memory);
  }
  keep(memory) {
    this.rowPixels = Math.min(this.mostRow, Math.max(Math.min(this.leastRow, 18), this.rowPixels));
    this.bytePixels = Math.max(this.leastByte, Math.min(this.bytePixels, this.width));
    const rows = this.height / this.rowPixels, bytes = this.width / this.bytePixels;
    this.row = Math.max(0, Math.min(this.row, memory.rows.total + 2 - rows));
    this.byte = Math.max(0, Math.min(this.byte, memory.top * 1.04 + 16 / this.bytePixels - bytes));
  }
  x(byte) { return (byte - this.byte) * this.bytePixels; }
  y(row) { return (row - this.row) * this.rowPixels; }
  rowAt(y) { return this.row + y / this.rowPixels; }
  byteAt(x) { return this.byte + x / this.bytePixels; }
  zoomRows(factor, y) {
    const row = this.rowAt(y);
    this.rowPixels = Math.min(this.mostRow, Math.max(Math.min(this.leastRow, 18), this.rowPixels * factor));
    this.row = row - y / this.rowPixels;
  }
  zoomBytes(factor, x) {
    const byte = this.byteAt(x);
    this.bytePixels = Math.max(this.leastByte, this.bytePixels * factor);
    this.byte = byte - x / this.bytePixels;
  }
  // Brings rows into sight, in the middle where they are not.
  reveal(top, bottom) {
    const last = this.rowAt(this.height);
    if (top >= this.row && bottom <= last) return;
    if (bottom > this.row && top < last && bottom - top > last - this.row) return;
    this.row = (top + bottom) / 2 - this.height / this.rowPixels / 2;
    if (bottom - top > this.height / this.rowPixels) this.row = top - 1;
  }
  revealBytes(low, high) {
    const there = this.width / this.bytePixels;
    if (low >= this.byte && high <= this.byte + there) return;
    this.byte = high - low > there ? low - 4 / this.bytePixels : (low + high) / 2 - there / 2;
  }
}
