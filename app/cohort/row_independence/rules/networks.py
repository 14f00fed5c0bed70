"""Rules of normalization, recurrence and attention."""

from __future__ import annotations

from collections.abc import Iterable

from cohort.row_independence.axes import any_axes, apply_signature, follow
from cohort.row_independence.operation import MICROSOFT, Operation, normalized, rule
from cohort.row_independence.rules.elementwise import combined
from cohort.row_independence.sizes import Size, quotient
from cohort.row_independence.tensors import BOOL, FLOAT, Loss, Tensor, Unproven, mixes, unknown

NORMALIZES = "it normalizes over all rows"
NO_STATE = "its state, mask or lengths are not of the same rows"


@rule("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "MeanVarianceNormalization")
@rule("QLinearSoftmax", domain=MICROSOFT)
def _normalize(operation: Operation) -> Tensor:
    one = operation.first()
    operation.same(*range(1, len(operation.inputs)), what="a scale or zero point")
    labels = [f"A{at}" for at in range(one.rank)]
    for axis in _normalized_axes(operation, one.rank):
        labels[axis] = f"n{axis}"
    return follow(operation, [(one, labels)], [labels], why=NORMALIZES)[0]


def _normalized_axes(operation: Operation, rank: int) -> Iterable[int]:
    match operation.name:
        case "MeanVarianceNormalization":
            axes = operation.attribute("axes", [0, 2, 3])
            return [normalized(axis, rank) for axis in axes]
        case "LpNormalization":
            version = 13
        case "QLinearSoftmax":
            version = operation.attribute("opset", 13)
        case _:
            version = operation.version
    return [operation.axis(-1, rank)] if version >= 13 else range(operation.axis(1, rank), rank)


@rule("BatchNormalization")
def _batch_normalize(operation: Operation) -> Tensor:
    in_training = operation.version < 14 and operation.outputs > 1
    if operation.attribute("training_mode", 0) or in_training:
        raise Unproven(
            Loss.RANDOM, "it was exported in training mode: it normalizes by the rows of the run"
        )
    if operation.first().rank == 1:
        return apply_signature(operation, "c; =; =; =; = -> c")[0]
    why = "it has statistics for a fixed number of rows"
    return apply_signature(operation, "N c A*; =; =; =; = -> N c A*", why=why)[0]


@rule("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def _layer_normalize(operation: Operation) -> list[Tensor]:
    one = operation.first()
    axis = operation.axis(-1, one.rank)
    labels = [f"n{at}" if at >= axis else f"A{at}" for at in range(one.rank)]
    given = [
        (each, labels[one.rank - each.rank :])
        for each in operation.present()
        if each.rank <= one.rank
    ]
    if len(given) < len(operation.present()):
        unknown("its scale has more dimensions than its input")
    statistics = [*labels[:axis], *["1"] * (one.rank - axis)]
    return follow(
        operation, given, [labels, statistics, statistics],
        dtypes=[one.dtype, FLOAT, FLOAT], broadcast=True, why=NORMALIZES,
    )  # fmt: skip


@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_normalize(operation: Operation) -> list[Tensor]:
    total = combined(operation, operation.present(), operation.first().dtype)
    labels = [*any_axes(total)[:-1], "n"]
    statistics = [*labels[:-1], "1"]
    return follow(
        operation, [(total, labels)], [labels, statistics, statistics, labels],
        dtypes=[total.dtype, FLOAT, FLOAT, total.dtype], why=NORMALIZES,
    )  # fmt: skip


@rule("LSTM", "GRU", "RNN")
def _recur(operation: Operation) -> list[Tensor]:
    directions = 2 if operation.attribute("direction", "forward") == "bidirectional" else 1
    hidden = operation.attribute("hidden_size") or operation.required(2).shape[-1]
    sizes: dict[str, Size] = {"d": directions, "h": hidden}
    if operation.attribute("layout", 0):
        signature = "N t i; =; =; =; N; N d h; N d h; = -> N t d h; N d h; N d h"
    else:
        signature = "t N i; =; =; =; N; d N h; d N h; = -> t d N h; d N h; d N h"
    _with_rows(operation, 0, 4, 5, 6)
    return apply_signature(
        operation, signature, sizes=sizes,
        why="it processes the rows one after the other, as if they were steps in time",
    )  # fmt: skip


def _with_rows(operation: Operation, *places: int) -> None:
    """Raise Unproven if some of these inputs have rows and other present inputs do not."""
    given = [one for place in places if (one := operation.input(place)) is not None]
    if any(one.rows for one in given) and not all(one.rows for one in given):
        mixes(NO_STATE)


@rule("Dropout")
def _drop(operation: Operation) -> list[Tensor]:
    one, mode = operation.first(), operation.input(2)
    if mode is not None:
        found = operation.elements(mode) if mode.same else None
        if found is None or found.size != 1 or found.item() is not False:
            raise Unproven(
                Loss.RANDOM, "it was exported in training mode: it drops values at random"
            )
    operation.same(1)
    labels = any_axes(one)
    return follow(operation, [(one, labels)], [labels, labels], dtypes=[one.dtype, BOOL])


@rule(
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    *("Bernoulli", "Multinomial"),
)
def _random(operation: Operation) -> Tensor:
    raise Unproven(Loss.RANDOM, f"{operation.name} gives random numbers")


# --- Attention. `N` is the batch; heads, positions and widths belong to one row.


def _mask(operation: Operation, place: int, *, rows_only: bool = False) -> str:
    """Return the signature of a mask or bias, which has rows or is the same for all rows."""
    one = operation.input(place)
    if one is None:
        return "="
    if one.rows is None and not rows_only:
        if one.rank > 2 and one.shape[0] != 1:
            unknown("its mask may have other rows")
        if one.rank == 1:
            mixes("its mask is for a fixed number of rows")
        return "="
    return "N" if one.rank == 1 else "N *"


@rule("Attention", domain=MICROSOFT)
def _attend_fused(operation: Operation) -> list[Tensor]:
    one, weights = operation.required(0), operation.required(1)
    sizes = operation.attribute("qkv_hidden_sizes")
    width = sizes[2] if sizes else quotient(weights.shape[-1], 3)
    known = {} if width is None else {"w": width}
    past = "2 N *"
    _with_rows(operation, 0, 4)
    mask = operation.input(3)
    if (
        one.rows
        and mask is not None
        and (not mask.rows or (mask.rank == 1 and mask.shape != (operation.symbols.rows,)))
    ):
        unknown("the layout of its mask is not understood")
    signature = (
        f"N s i; =; =; {_mask(operation, 3)}; {past}; {_mask(operation, 5)}; = -> N s w; 2 N ? ? ?"
    )
    return apply_signature(operation, signature, sizes=known, why=NO_STATE)


@rule("EmbedLayerNormalization", domain=MICROSOFT)
def _embed(operation: Operation) -> list[Tensor]:
    signature = f"N s; N s; =; =; =; =; =; N s; {_positions(operation, 8)} -> N s ?; N; N s ?"
    return apply_signature(operation, signature, why=NO_STATE)


def _positions(operation: Operation, place: int) -> str:
    """Return the signature of positions, which have rows or are one line for all rows."""
    one = operation.input(place)
    return "=" if one is not None and one.shape[0] == 1 else "N s"


@rule("RotaryEmbedding", domain=MICROSOFT)
def _rotate(operation: Operation) -> Tensor:
    if operation.attribute("is_packed_batching", 0):
        mixes("rows are packed behind each other")
    positions = "=" if operation.required(1).rank == 1 else "N s"
    return apply_signature(operation, f"N *; {positions}; =; = -> N *", why=NO_STATE)[0]


@rule("MultiHeadAttention", domain=MICROSOFT)
def _attend_heads(operation: Operation) -> list[Tensor]:
    one, values = operation.required(0), operation.input(2)
    if one.rank != 3 or (values is not None and values.rank != 3):
        unknown("it takes packed heads")
    _with_rows(operation, 0, 1, 2, 4, 6, 7)
    mask = operation.input(4)
    if mask is not None and mask.rank == 1 and mask.shape != (operation.symbols.rows,):
        unknown("the layout of its mask is not understood")
    sizes = {} if values is None else {"w": values.shape[-1]}
    signature = (
        f"N s i; N k j; N k v; =; {_mask(operation, 4)}; {_mask(operation, 5)}; N *; N * "
        "-> N s w; N ? ? ?; N ? ? ?; N ? ? ?"
    )
    return apply_signature(operation, signature, sizes=sizes, why=NO_STATE)


@rule("GroupQueryAttention", domain=MICROSOFT)
def _attend_groups(operation: Operation) -> list[Tensor]:
    query, key, past = operation.required(0), operation.input(1), operation.input(3)
    _with_rows(operation, 0, 1, 2, 3, 4, 5, 9)
    head: Size = operation.symbols.new() if past is None else past.shape[-1]
    packed = operation.attribute("num_heads", 1) * head
    sizes: dict[str, Size] = {"w": packed if key is None else query.shape[-1], "h": head}
    if heads := operation.attribute("kv_num_heads"):
        sizes["g"] = heads
    signature = (
        f"N s i; N k j; N k v; N g p h; N g p h; N *; =; =; =; N *; {_mask(operation, 10)}; = "
        "-> N s w; N g ? h; N g ? h"
    )
    return apply_signature(operation, signature, sizes=sizes, why=NO_STATE)


@rule("Attention")
def _attend(operation: Operation) -> list[Tensor]:
    query, key, value = (operation.required(place) for place in range(3))
    _with_rows(operation, 0, 1, 2, 4, 5, 6)
    heads = operation.attribute("kv_num_heads")
    sizes: dict[str, Size] = {"g": heads} if heads and key.rank == 3 else {}
    mask = operation.input(3)
    if mask is not None and mask.rows and mask.rank < 4:
        mixes("its mask has rows along another axis")
    flat = query.rank == 3
    ways = ("N s i; N k j; N k v", "N s ?") if flat else ("N h s i; N g k j; N g k v", "N h s v")
    signature = (
        f"{ways[0]}; {_mask(operation, 3)}; N *; N *; N * -> {ways[1]}; N g ? ?; N g ? ?; N ? ? ?"
    )
    return apply_signature(
        operation,
        signature,
        sizes=sizes,
        dtypes=[query.dtype, key.dtype, value.dtype],
        why=NO_STATE,
    )
