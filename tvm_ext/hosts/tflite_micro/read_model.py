# SPDX-License-Identifier: Apache-2.0
"""Read from a ``.tflite`` file what TensorFlow Lite Micro plans memory for.

A table of a FlatBuffer finds its fields by their numbers; a number never changes once it is
published, so what is read here stays valid for newer files. The places of operators in the file are
kept, because a new order is written over them.

Source: ``tensorflow/compiler/mlir/lite/schema/schema.fbs`` of tensorflow/tflite-micro, August 2026.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod

IDENTIFIER = b"TFL3"

PLAN_NAME = "OfflineMemoryAllocation"
"""Name of the metadata in which TensorFlow Lite Micro looks for a plan."""


ModelField = IntEnum(
    "ModelField",
    "VERSION OPERATOR_CODES SUBGRAPHS DESCRIPTION BUFFERS METADATA_BUFFER METADATA SIGNATURE_DEFS "
    "EXTERNAL_BUFFER_GROUPS EXTERNAL_BUFFERS",
    start=0,
)
"""Fields of the root table ``Model`` by their numbers, as those of the tables below."""

CodeField = IntEnum(
    "CodeField", "DEPRECATED_BUILTIN_CODE CUSTOM_CODE VERSION BUILTIN_CODE", start=0
)
SubgraphField = IntEnum("SubgraphField", "TENSORS INPUTS OUTPUTS OPERATORS NAME", start=0)
TensorField = IntEnum("TensorField", "SHAPE TYPE BUFFER NAME QUANTIZATION IS_VARIABLE", start=0)
OperatorField = IntEnum(
    "OperatorField", "OPCODE_INDEX INPUTS OUTPUTS BUILTIN_OPTIONS_TYPE BUILTIN_OPTIONS", start=0
)
BufferField = IntEnum("BufferField", "DATA OFFSET SIZE", start=0)
MetadataField = IntEnum("MetadataField", "NAME BUFFER", start=0)

_TYPES = (
    "float32 float16 int32 uint8 int64 string bool int16 complex64 int8 float64 complex128 uint64 "
    "resource variant uint32 uint16 int4 bfloat16 int2 uint4 float8_e4m3fn float8_e5m2"
)
TENSOR_TYPES = tuple(_TYPES.split())
"""Names of the types of tensors, by number."""

TYPE_BYTES = {
    "float32": 4, "float16": 2, "int32": 4, "uint8": 1, "int64": 8, "bool": 1, "int16": 2,
    "complex64": 8, "int8": 1, "float64": 8, "complex128": 16, "uint64": 8, "resource": 4,
    "uint32": 4, "uint16": 2, "int4": 1, "bfloat16": 2,
}  # fmt: skip
"""Bytes of an element, as ``TfLiteTypeSizeOf`` has them; int4 is unpacked."""

_OPERATORS = """
    ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE
    EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D
    LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1
    RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS
    SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER
    BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE
    UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT
    LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG
    PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE TILE
    EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD
    REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV
    REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU
    SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE
    RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE
    NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM
    BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D
    RESERVED_133 RESERVED_134 RESERVED_135 HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT
    HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE
    BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU
    DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX
    UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT
    STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM
    STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE STABLEHLO_BROADCAST_IN_DIM
    STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE STABLEHLO_ABS
    STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG
    STABLEHLO_MINIMUM STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER
    STABLEHLO_RSQRT STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER
    STABLEHLO_COMPARE STABLEHLO_CONVERT STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE
    STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT
    STABLEHLO_WHILE STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE STABLEHLO_RNG_BIT_GENERATOR
    REDUCE_WINDOW STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE
"""
OPERATORS = tuple(_OPERATORS.split())
"""Names of the built-in operators, by number."""

NOT_PLANNED = -1
"""The offset in a plan of a tensor that TensorFlow Lite Micro places itself."""


@dataclass(frozen=True)
class TfliteTensor:
    """A tensor of one subgraph."""

    name: str
    shape: tuple[int, ...]
    type: str
    size: int  # Bytes, before they are rounded up to the arena's alignment
    is_constant: bool  # Whether the file, or a kernel, has its data
    is_variable: bool

    @property
    def in_arena(self) -> bool:
        """Whether the arena's head holds it: neither data of the file nor a variable."""
        return not self.is_constant and not self.is_variable and self.size > 0


@dataclass(frozen=True)
class Operator:
    """An operator: its name, its tensors by their numbers, and the subgraphs that it runs."""

    name: str
    inputs: tuple[int, ...]  # -1 stands for an operand that is left out
    outputs: tuple[int, ...]
    runs: tuple[int, ...] = ()

    @property
    def operands(self) -> tuple[int, ...]:
        """The operands that are there."""
        return tuple(tensor for tensor in self.inputs if tensor >= 0)


@dataclass(frozen=True)
class Subgraph:
    """Tensors and operators, in the order in which the operators run."""

    tensors: tuple[TfliteTensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class Model:
    """A model, and the bytes that it was read from."""

    name: str
    content: bytes
    subgraphs: tuple[Subgraph, ...]
    plan: tuple[int, ...] | None  # The file's own: an offset in bytes for each tensor
    operator_vectors: tuple[int, ...]  # The lists of operators in the file

    @property
    def tensors(self) -> tuple[TfliteTensor, ...]:
        """The tensors of all subgraphs, in the order of a plan."""
        return tuple(tensor for subgraph in self.subgraphs for tensor in subgraph.tensors)

    def first_tensor(self, subgraph: int) -> int:
        """Return the number in a plan of a subgraph's first tensor."""
        return sum(len(earlier.tensors) for earlier in self.subgraphs[:subgraph])


def read_model(content: bytes, name: str) -> Model:
    """Read a model.

    Raises
    ------
    ValueError
        If the bytes are no ``.tflite`` model, or one that TensorFlow Lite Micro cannot hold: with
        data outside the FlatBuffer, compressed weights, or tensors of a type or size that it does
        not know. The message names the file and the tensor.
    """
    if content[4:8] != IDENTIFIER:
        raise ValueError(f"{name}: is no model of TensorFlow Lite: the mark 'TFL3' is missing")
    try:
        return _ModelReader(content, name).model()
    except (struct.error, IndexError, TypeError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(f"{name}: the file is cut off or damaged: {error}") from error


class FlatTable:
    """A table of a FlatBuffer, whose fields are read by their numbers."""

    def __init__(self, content: bytes, position: int) -> None:
        if not 0 < position < len(content):
            raise IndexError(f"an offset leads to byte {position} of {len(content)}")
        self.content, self.position = content, position
        self._fields = position - struct.unpack_from("<i", content, position)[0]
        if self._fields < 0:
            raise IndexError(f"the fields of the table at byte {position} lie before the file")

    def fields(self) -> int:
        """Return how many fields the table may have."""
        return int(struct.unpack_from("<H", self.content, self._fields)[0] - 4) // 2

    def field(self, number: int) -> int:
        """Return the position of a field, 0 if the table has none."""
        if number >= self.fields():
            return 0
        (offset,) = struct.unpack_from("<H", self.content, self._fields + 4 + 2 * number)
        return self.position + offset if offset else 0

    def scalar(self, number: int, code: str) -> int:
        """Return a number, of one of the codes of `struct`; 0 where there is none."""
        position = self.field(number)
        return struct.unpack_from("<" + code, self.content, position)[0] if position else 0

    def vector(self, number: int) -> tuple[int, int]:
        """Return where the elements of a list begin, and their number; zeros without a list."""
        position = self.field(number)
        if not position:
            return 0, 0
        begin = position + struct.unpack_from("<I", self.content, position)[0]
        return begin + 4, struct.unpack_from("<I", self.content, begin)[0]

    def numbers(self, number: int) -> tuple[int, ...]:
        """Return a list of 32-bit integers."""
        begin, count = self.vector(number)
        return struct.unpack_from(f"<{count}i", self.content, begin) if count else ()

    def tables(self, number: int) -> Iterator[FlatTable]:
        """Yield a list of tables."""
        begin, count = self.vector(number)
        for at in range(begin, begin + 4 * count, 4):
            yield table_at(self.content, at)

    def text(self, number: int) -> str:
        """Return a string, empty if there is none."""
        begin, count = self.vector(number)
        return self.content[begin : begin + count].decode("utf-8", "replace")


def table_at(content: bytes, at: int = 0) -> FlatTable:
    """Return the table that the offset at a byte leads to; by default the root, ``Model``."""
    return FlatTable(content, at + struct.unpack_from("<I", content, at)[0])


def plan_buffer(root: FlatTable) -> int | None:
    """Return the number of the buffer in which a file has its plan, None if it has none."""
    entries = root.tables(ModelField.METADATA)
    plans = [entry for entry in entries if entry.text(MetadataField.NAME) == PLAN_NAME]
    return plans[-1].scalar(MetadataField.BUFFER, "I") if plans else None


class _ModelReader:
    def __init__(self, content: bytes, name: str) -> None:
        self.content, self.name = content, name
        self.root = table_at(content)
        version, *lists = ModelField
        self.root.scalar(version, "I")
        for field in lists:
            self.root.vector(field)  # `with_plan` copies or leads to fields that are not used here.
        self.buffers = list(self.root.tables(ModelField.BUFFERS))
        outside = any(each.scalar(BufferField.OFFSET, "Q") > 1 for each in self.buffers)
        if outside or any(True for _ in self.root.tables(ModelField.EXTERNAL_BUFFERS)):
            raise ValueError(
                f"{name}: keeps data outside its FlatBuffer, where TensorFlow Lite Micro reads none"
            )
        names = {entry.text(MetadataField.NAME) for entry in self.root.tables(ModelField.METADATA)}
        if "COMPRESSION_METADATA" in names:
            raise ValueError(
                f"{name}: has compressed weights, whose scratch memory this reader does not know"
            )
        self.codes = [self.operator_name(c) for c in self.root.tables(ModelField.OPERATOR_CODES)]

    def model(self) -> Model:
        tables = list(self.root.tables(ModelField.SUBGRAPHS))
        if not tables:
            raise ValueError(f"{self.name}: the model has no subgraph")
        subgraphs = tuple(self.subgraph(table) for table in tables)
        for number, subgraph in enumerate(subgraphs):
            self.check(number, subgraph, len(subgraphs))
        vectors = tuple(t.vector(SubgraphField.OPERATORS)[0] for t in tables)
        count = sum(len(subgraph.tensors) for subgraph in subgraphs)
        return Model(self.name, self.content, subgraphs, self.plan(count), vectors)

    def plan(self, count: int) -> tuple[int, ...] | None:
        number = plan_buffer(self.root)
        if number is None:
            return None
        begin, size = self.buffers[number].vector(BufferField.DATA)
        words = struct.unpack_from(f"<{size // 4}i", self.content, begin) if size else ()
        offsets = words[3 : 3 + words[2]] if len(words) > 2 else ()
        if len(offsets) != count:
            raise ValueError(
                f"{self.name}: its {PLAN_NAME} has {len(offsets)} offsets, and the model {count} "
                "tensors"
            )
        return offsets

    def operator_name(self, code: FlatTable) -> str:
        old = code.scalar(CodeField.DEPRECATED_BUILTIN_CODE, "b")
        number = max(old, code.scalar(CodeField.BUILTIN_CODE, "i"))
        name = OPERATORS[number] if 0 <= number < len(OPERATORS) else f"operator {number}"
        custom = code.text(CodeField.CUSTOM_CODE)
        return f"{name} {custom}" if name == "CUSTOM" else name

    def subgraph(self, table: FlatTable) -> Subgraph:
        operators = tuple(self.operator(one) for one in table.tables(SubgraphField.OPERATORS))
        # The kernel of VAR_HANDLE keeps its result, a number, itself.
        held = {tensor for one in operators if one.name == "VAR_HANDLE" for tensor in one.outputs}
        tensors = enumerate(table.tables(SubgraphField.TENSORS))
        return Subgraph(
            tuple(self.tensor(each, at, at in held) for at, each in tensors),
            table.numbers(SubgraphField.INPUTS),
            table.numbers(SubgraphField.OUTPUTS),
            operators,
        )

    def tensor(self, table: FlatTable, number: int, is_held: bool) -> TfliteTensor:
        # The converter joins the names of operators that it has made one of.
        label = table.text(TensorField.NAME).partition(";")[0] or f"tensor {number}"
        code = table.scalar(TensorField.TYPE, "b")
        kind = TENSOR_TYPES[code] if 0 <= code < len(TENSOR_TYPES) else f"type {code}"
        if kind not in TYPE_BYTES:
            raise ValueError(
                f"{self.name}: tensor {label!r} is of type {kind}, which TensorFlow Lite Micro "
                "cannot hold"
            )
        shape = table.numbers(TensorField.SHAPE)
        if any(extent < 0 for extent in shape):
            raise ValueError(f"{self.name}: tensor {label!r} has the unknown shape {list(shape)}")
        buffer = self.buffers[table.scalar(TensorField.BUFFER, "I")]
        has_data = is_held or bool(buffer.vector(BufferField.DATA)[1])
        variable = bool(table.scalar(TensorField.IS_VARIABLE, "b"))
        size = prod(shape) * TYPE_BYTES[kind]
        if size >= 1 << 30:  # So that a plan's offsets, of 32 bits, hold it
            raise ValueError(f"{self.name}: tensor {label!r} is too large, of {size} bytes")
        return TfliteTensor(label, shape, kind, size, has_data, variable)

    def operator(self, table: FlatTable) -> Operator:
        name = self.codes[table.scalar(OperatorField.OPCODE_INDEX, "I")]
        place = table.field(OperatorField.BUILTIN_OPTIONS)
        options = table_at(self.content, place) if place else None
        # IfOptions and WhileOptions have two numbers of subgraphs, CallOnceOptions has one.
        count = {"IF": 2, "WHILE": 2, "CALL_ONCE": 1}.get(name, 0)
        runs = tuple(options.scalar(at, "i") if options else 0 for at in range(count))
        inputs, outputs = table.numbers(OperatorField.INPUTS), table.numbers(OperatorField.OUTPUTS)
        return Operator(name, inputs, outputs, runs)

    def check(self, number: int, subgraph: Subgraph, count: int) -> None:
        """Refuse a number of a tensor or subgraph that the file does not have."""
        last = len(subgraph.tensors) - 1
        touched = [t for one in subgraph.operators for t in (*one.operands, *one.outputs)]
        for tensor in (*subgraph.inputs, *subgraph.outputs, *touched):
            if not 0 <= tensor <= last:
                raise ValueError(
                    f"{self.name}: subgraph {number} uses tensor {tensor}, its last one is {last}"
                )
        for one in subgraph.operators:
            if any(not number < other < count for other in one.runs):
                # A subgraph that runs itself, or an earlier one, would have no end.
                raise ValueError(
                    f"{self.name}: subgraph {number} runs subgraph {one.runs} by {one.name}, "
                    f"of {count} subgraphs"
                )


def called_tensor(tensors: Sequence[TfliteTensor], number: int) -> str:
    """Return a name for a tensor that no other of its subgraph has."""
    name = tensors[number].name
    repeated = sum(tensor.name == name for tensor in tensors) > 1
    return f"{name} (tensor {number})" if repeated else name
