"""Rules of ai.onnx.ml operators on tables of rows and columns, and of text operators."""

from __future__ import annotations

from dataclasses import replace

from cohort.row_independence.axes import apply_signature
from cohort.row_independence.operation import MICROSOFT, ML, Operation, rule
from cohort.row_independence.sizes import Size
from cohort.row_independence.tensors import (
    FLOAT,
    INT64,
    STRING,
    RowAxis,
    Tensor,
    mixes,
    sized,
    unknown,
)

ONE_ROW = "all rows are one row's columns to it"


def _table(
    operation: Operation, outputs: str, sizes: dict[str, Size], *dtypes: int
) -> list[Tensor]:
    """Return the outputs for a table; a vector is a single row."""
    signature = f"N c -> {outputs}"
    if operation.first().rank == 1:
        signature = f"c -> {outputs.replace('N', '1')}"
    return apply_signature(operation, signature, sizes=sizes, dtypes=dtypes, why=ONE_ROW)


@rule("TreeEnsembleClassifier", "LinearClassifier", "SVMClassifier", domain=ML)
def _classify(operation: Operation) -> list[Tensor]:
    texts = operation.attribute("classlabels_strings")
    labels = (
        texts
        or operation.attribute("classlabels_ints")
        or operation.attribute("classlabels_int64s")
    )
    sizes: dict[str, Size] = {"k": len(labels)} if labels else {}
    return _table(operation, "N; N k", sizes, STRING if texts else INT64, FLOAT)


@rule("TreeEnsembleRegressor", "LinearRegressor", "SVMRegressor", "TreeEnsemble", domain=ML)
def _regress(operation: Operation) -> list[Tensor]:
    targets = operation.attribute("n_targets") or operation.attribute("targets") or 1
    return _table(operation, "N k", {"k": targets}, FLOAT)


@rule("Normalizer", "ZipMap", domain=ML)
def _keep_columns(operation: Operation) -> list[Tensor]:
    """Return the columns themselves, because dictionaries of columns are served as columns."""
    return _table(operation, "N c", {}, FLOAT)


@rule("Scaler", "Imputer", domain=ML)
def _adjust(operation: Operation) -> list[Tensor]:
    lists = ("offset", "scale", "imputed_value_floats", "imputed_value_int64s")
    dtype = FLOAT if operation.name == "Scaler" else operation.first().dtype
    if any(len(operation.attribute(name, [])) > 1 for name in lists):  # one number per column
        return _table(operation, "N c", {}, dtype)
    return apply_signature(operation, "A* -> A*", dtypes=[dtype])


@rule("LabelEncoder", "CategoryMapper", "Binarizer", domain=ML)
def _encode(operation: Operation) -> list[Tensor]:
    dtype = operation.first().dtype
    values = [name for name in operation.attributes if name.startswith("values_")]
    if operation.name == "CategoryMapper":
        dtype = INT64 if dtype == STRING else STRING
    elif values:
        dtype = {"values_strings": STRING, "values_int64s": INT64}.get(values[0], FLOAT)
    return apply_signature(operation, "A* -> A*", dtypes=[dtype])


@rule("OneHotEncoder", domain=ML)
def _one_hot(operation: Operation) -> list[Tensor]:
    classes = operation.attribute("cats_int64s") or operation.attribute("cats_strings") or []
    return apply_signature(operation, "A* -> A* k", sizes={"k": len(classes)}, dtypes=[FLOAT])


@rule("FeatureVectorizer", domain=ML)
def _join_columns(operation: Operation) -> list[Tensor]:
    count = len(operation.inputs)
    columns = "; ".join(f"N c{at}" for at in range(count))
    widths = operation.attribute("inputdimensions", [])
    return apply_signature(
        operation, f"{columns} -> N k", sizes={"k": sum(widths)}, dtypes=[FLOAT], why=ONE_ROW
    )  # fmt: skip


@rule("TfIdfVectorizer")
def _count_words(operation: Operation) -> list[Tensor]:
    one = operation.first()
    pool = operation.attribute("pool_strings") or []
    if one.padding is not None and (one.rows != RowAxis(0) or one.padding in pool):
        mixes("it counts the padding of texts")
    width = max(operation.attribute("ngram_indexes") or [-1]) + 1
    outputs = "N k" if one.rank == 2 else "k"
    signature = f"N w -> {outputs}" if one.rank == 2 else f"w -> {outputs}"
    return apply_signature(
        operation, signature, sizes={"k": width}, dtypes=[FLOAT], why="all rows are one text to it"
    )  # fmt: skip


@rule("Tokenizer", domain=MICROSOFT)
def _cut_texts(operation: Operation) -> Tensor:
    """Tokenize texts; shorter rows are padded to the longest row of the run."""
    one = operation.first()
    shape = (*one.shape, operation.symbols.new())
    if one.same:
        return sized(shape, STRING)
    if one.rows != RowAxis(0) or one.rank > 2:
        unknown("its texts have several dimensions")
    if operation.attribute("mark", 0):
        mixes("it marks where texts end, which depends on the longest row of the run")
    return Tensor(shape, STRING, one.rows, padding=operation.attribute("pad_value", ""))


@rule("StringNormalizer")
def _normalize_texts(operation: Operation) -> Tensor:
    one = operation.first()
    if one.rows and operation.attribute("stopwords"):
        mixes("it drops texts: the number that remains depends on all rows")
    return replace(one, elements=None)


TAKES_PADDING = frozenset(
    {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "TfIdfVectorizer"}
)
"""Operators that accept texts padded to the longest row."""
