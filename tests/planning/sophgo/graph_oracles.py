"""Random graphs, and oracles of their placement that share no code with what they judge."""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from passes.planning.sophgo.op_sequence import Op, OpSequence, Value

SKIPPED = ("func", "none", "return", "weight", "call", "yield")


def op(name, kind, operands="", results=(), nested=False):
    """Return an op; operands and results in short: ``op("add", "add", "ab", [("c", 64)])``."""
    return Op(name, kind, tuple(operands), tuple(Value(*result) for result in results), nested)


@st.composite
def sequences(draw, most_ops=12, most_size=5, kinds=True):
    """Graphs with skips, several results, reshapes, unread and empty values, and groups."""
    sizes: dict[str, int] = {}
    room: dict[str, int] = {}  # the bytes that stand behind each name
    outside: set[str] = set()  # names of other memory
    ops = []
    for index in range(draw(st.integers(1, most_ops))):
        names = list(sizes)
        operands = tuple(draw(st.lists(st.sampled_from(names), max_size=3))) if names else ()
        choices = "oooooo" + ("rrsnw" if kinds else "rr")
        kind, nested = draw(st.sampled_from(choices)), False
        count = draw(st.sampled_from([0, 1, 1, 1, 1, 2, 3]))
        if kind in "rn" and not operands:
            kind = "o"
        if kind == "r":
            most = room[operands[0]]
            made = [draw(st.sampled_from([most, most, draw(st.integers(0, most))]))]
        else:
            made = [draw(st.integers(0, most_size)) for _ in range(count)]
        if kind == "n":
            nested = True
        name = {"r": "reshape", "s": draw(st.sampled_from(SKIPPED)), "w": "weight"}.get(kind, "op")
        results = tuple(
            Value(f"v{len(sizes) + at}", size, draw(st.sampled_from([1, 1, 1, 2, 4])))
            for at, size in enumerate(made)
        )
        ops.append(Op(f"op{index}", name, operands, results, nested))
        sizes.update((value.name, value.size) for value in results)
        for value in results:
            is_alias = kind in "rn" and operands[0] not in outside
            room[value.name] = room[operands[0]] if is_alias else value.size
            if kind in "sw" or (kind in "rn" and not is_alias):
                outside.add(value.name)
    return OpSequence(tuple(ops))


# The table as the original keeps it: scanned from the front, for every result.


@dataclass
class NaiveTable:
    """The strategy with nothing but lists; `by_value` as the original, else by storage."""

    sequence: OpSequence
    base: int
    alignment: int
    by_value: bool
    address: dict = field(default_factory=dict)
    decisions: list = field(default_factory=list)

    def run(self):
        self.cursor = self.base
        self.table = []  # [value, address, bytes], in order
        self.hold = []
        self.owners = []  # (address, whose) pairs
        self.readers = {}
        self.root = self.roots()
        for one in self.sequence.ops:
            self.visit(one)
        return self

    def roots(self):
        """Return what the readers of each value are counted by."""
        root = {}
        for one in self.sequence.ops:
            for value in one.results:
                root[value.name] = value.name
                shares = one.nested or one.kind == "reshape"
                if one.kind not in SKIPPED and shares and not self.by_value:
                    root[value.name] = root[one.operands[0]]
        return root

    def all_readers(self, name):
        """Return how many operands are this value, or share its root."""
        ops = self.sequence.ops
        count = sum(self.root[o] == self.root[name] for one in ops for o in one.operands)
        if not self.by_value:
            read = {o for one in ops for o in one.operands}
            count += sum(
                value.name not in read and self.root[value.name] == self.root[name]
                for one in ops
                if not one.nested
                for value in one.results
            )
        return count

    def alignment_of(self, name):
        need = self.alignment
        for one in self.sequence.ops:
            for value in one.results:
                same = value.name == name
                if not self.by_value:
                    same = self.root[value.name] == self.root[name]
                elif self.shares_memory(name, value.name):
                    same = True
                if same:
                    while need % value.alignment:
                        need += self.alignment
        return need

    def shares_memory(self, name, other):
        """Whether a value stands on another through reshapes and groups."""
        while True:
            if name == other:
                return True
            makers = [o for o in self.sequence.ops if any(v.name == other for v in o.results)]
            maker = makers[0]
            if maker.kind in SKIPPED or not (maker.nested or maker.kind == "reshape"):
                return False
            other = maker.operands[0]

    def visit(self, one):
        for operand in one.operands:
            root = self.root[operand]
            if self.readers.get(root, 0) >= 1:
                self.readers[root] -= 1
        if one.kind in SKIPPED:
            return
        if one.nested or one.kind == "reshape":
            for value in one.results:
                if one.operands[0] not in self.address:
                    continue
                self.address[value.name] = self.address[one.operands[0]]
                if not one.nested:
                    self.record(value, self.address[value.name])
                self.decisions.append((value.name, "share", one.operands[0]))
            return
        for value in one.results:
            source = self.scan(one, value)
            if source is None:
                need = self.alignment_of(value.name)
                address = -(-self.cursor // need) * need
                self.cursor = -(-(address + value.size) // self.alignment) * self.alignment
                self.decisions.append((value.name, "new", None))
            else:
                address = self.address[source]
                self.decisions.append((value.name, "reuse", source))
            self.record(value, address)
            self.release(one)
        if not one.results and not self.by_value:
            self.release(one)

    def record(self, value, address):
        root = self.root[value.name]
        self.address[value.name] = address
        self.table.append((value.name, address, value.size))
        self.hold.append(value.name)
        if (address, root) not in self.owners:
            self.owners.append((address, root))
        if root not in self.readers:
            self.readers[root] = self.all_readers(value.name)

    def scan(self, one, value):
        for name, address, size in self.table:
            if name in self.hold or address in [at for at, _ in self.owners]:
                continue
            if self.readers[self.root[name]] > 0 or size < value.size:
                continue
            if address in [self.address.get(operand) for operand in one.operands]:
                continue
            if address % self.alignment_of(value.name):
                continue
            return name
        return None

    def release(self, one):
        for operand in one.operands:
            root = self.root[operand]
            if root in self.hold and self.readers[root] == 0:
                address = self.address[root]
                self.owners = [
                    (at, whose)
                    for at, whose in self.owners
                    if at != address or (whose != root and not self.by_value)
                ]
                self.hold = [name for name in self.hold if self.root[name] != root]


# What a machine would do: run the graph on real bytes.


class OverwrittenError(AssertionError):
    """An operand is not what was written."""


def replay(sequence, offsets):
    """Run a graph on one memory; each op checks its operands, and what is over is wiped.

    A storage is over after the op that reads it last, unless one of its names is never read or its
    last reader passes it on: then somebody else may want it, and it is checked at the end.
    """
    size = {value.name: value.size for one in sequence.ops for value in one.results}
    root = {}
    for one in sequence.ops:
        for value in one.results:
            shares = one.kind not in SKIPPED and (one.nested or one.kind == "reshape")
            root[value.name] = root[one.operands[0]] if shares else value.name
    placed = [
        value.name
        for one in sequence.ops
        if one.kind not in SKIPPED and not one.nested
        for value in one.results
        if value.name in offsets
    ]
    read = {operand for one in sequence.ops for operand in one.operands}
    kept = {root[name] for name in placed if name not in read}
    last = {}
    for index, one in enumerate(sequence.ops):
        for operand in one.operands:
            last[root[operand]] = index
    memory = {}

    def check(name, reader):
        for byte in range(size[name]):
            found = memory[offsets[name] + byte]
            if found != (root[name], byte):
                raise OverwrittenError(f"{reader} finds {found} in {name!r}")

    num_checked = 0
    for index, one in enumerate(sequence.ops):
        for operand in one.operands:
            if operand in placed:
                check(operand, one.name)
                num_checked += size[operand]
        for value in one.results:
            if value.name in placed and root[value.name] == value.name:
                for byte in range(value.size):
                    memory[offsets[value.name] + byte] = value.name, byte
        if one.kind in SKIPPED or one.nested:
            kept.update(root[o] for o in one.operands if last[root[o]] == index)
            continue
        for operand in dict.fromkeys(one.operands):
            name = root[operand]
            if last[name] == index and name not in kept and name in placed:
                for byte in range(size[name]):
                    memory[offsets[name] + byte] = "wiped", byte
    for name in placed:
        if root[name] in kept:
            check(name, "the end")
    return num_checked
