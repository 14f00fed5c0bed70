"""Pictures become the pixels that a model was trained with."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image, ImageOps

from cohort import Runtime
from cohort.errors import InvalidInput, LoadFailed, NotReady
from cohort.processing.images import ImageStep
from cohort.processing.steps import StepContext
from cohort.repository import ImageInput, InputConfig
from cohort.tensors import TensorSpec
from tests import onnx_models
from tests.processing.pictures import channel_means, picture, saved

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def step_of(shape: Any, datatype: str = "FP32", **config: Any) -> ImageStep:
    spec = TensorSpec("image", datatype, shape)
    made = InputConfig(image=ImageInput(**config))
    return ImageStep(StepContext("image", made, {"image": spec}, Path()))


def pixels(step: ImageStep, *files: bytes) -> Any:
    values = np.empty(len(files), np.object_)
    values[:] = files
    step.prepared_bytes(values, lambda: None)
    return step.prepare(values, lambda: None)["image"]


def resized(file: bytes, width: int, height: int) -> Any:
    """By Pillow and numpy alone, from 0 to 255, [height, width, 3]."""
    image = Image.open(BytesIO(file)).convert("RGB")
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR)).astype(np.float64)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_every_format_gives_its_pixels(kind: str, mode: str) -> None:
    """They are scaled to 0 to 1, less mean, divided by std, with an error below 1/255."""
    file = saved(picture(90, 70, mode), kind)
    got = pixels(step_of(("N", 3, 24, 32), mean=MEAN, std=STD), file)
    wanted = ((resized(file, 32, 24) / 255 - MEAN) / STD).transpose(2, 0, 1)[None]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize("size", [(400, 300), (300, 401), (224, 224), (90, 70), (33, 300)])
def test_the_middle_is_torchvision_s(size: tuple[int, int]) -> None:
    """shorter_side_then_crop gives the pixels of torchvision's Resize(40) and CenterCrop(32)."""
    file = saved(picture(*size), "PNG")
    crop: Any = {"resize": "shorter_side_then_crop", "shorter_side": 40}
    got = pixels(step_of(("N", 3, 32, 32), **crop), file)[0]
    width, height = size
    whole = (40, int(40 * height / width)) if width <= height else (int(40 * width / height), 40)
    left, top = round((whole[0] - 32) / 2), round((whole[1] - 32) / 2)
    wanted = resized(file, *whole)[top : top + 32, left : left + 32] / 255
    np.testing.assert_allclose(got, wanted.transpose(2, 0, 1), atol=1e-6)


def test_the_middle_of_a_long_picture_is_made_alone() -> None:
    """The rest of it would have thousands of times the pixels; within 1/255 it is the same."""
    step = step_of(("N", 3, 32, 32), resize="shorter_side_then_crop")
    file = saved(picture(4, 2000), "PNG")
    whole = resized(file, 32, 16000)[8000 - 16 : 8000 + 16] / 255
    np.testing.assert_allclose(pixels(step, file)[0], whole.transpose(2, 0, 1), atol=1.01 / 255)
    assert pixels(step, saved(Image.new("1", (1, 65_535)), "PNG")).shape == (1, 3, 32, 32)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_a_photograph_is_looked_at_as_it_was_taken(kind: str, orientation: int) -> None:
    """EXIF contains the orientation of the camera."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    sent: Any = exif if kind == "TIFF" else exif.tobytes()
    file = saved(picture(60, 40), kind, exif=sent)
    upright = ImageOps.exif_transpose(Image.open(BytesIO(file)))
    wanted = saved(upright, "PNG")
    got = pixels(step_of(("N", 3, 20, 20)), file)[0]
    np.testing.assert_allclose(got, resized(wanted, 20, 20).transpose(2, 0, 1) / 255, atol=1e-6)


def test_alpha_palettes_and_inks_become_colours() -> None:
    """Pillow's convert("RGB") does so; alpha is dropped, not laid on a background."""
    photo = picture(60, 40)
    clear = photo.copy()
    clear.putalpha(Image.new("L", photo.size, 0))
    step = step_of(("N", 3, 40, 60))
    np.testing.assert_array_equal(
        pixels(step, saved(clear, "PNG")), pixels(step, saved(photo, "PNG"))
    )
    for mode, kind in (("P", "PNG"), ("P", "GIF"), ("CMYK", "JPEG"), ("1", "PNG"), ("LA", "PNG")):
        file = saved(photo.convert(mode), kind)
        wanted = resized(file, 60, 40).transpose(2, 0, 1) / 255
        np.testing.assert_allclose(pixels(step, file)[0], wanted, atol=1e-6)
    palette = saved(photo.convert("P"), "PNG", transparency=bytes(range(200)))
    assert pixels(step, palette).shape == (1, 3, 40, 60)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled(kind: str) -> None:
    """Pillow alone would make all that is above 255 white."""
    deep = np.arange(0, 65_536, 64, dtype=np.uint16).reshape(32, 32)
    got = pixels(step_of(("N", 1, 32, 32)), saved(Image.fromarray(deep), kind))[0, 0]
    np.testing.assert_allclose(got, deep / 65_535, atol=1 / 255)


def test_numbers_of_32_bits_are_refused() -> None:
    """The file does not define which value is white."""
    file = saved(Image.fromarray(np.zeros((8, 8), np.float32)), "TIFF")
    with pytest.raises(InvalidInput, match=r"row 0: .* got one of 32 bits"):
        pixels(step_of(("N", 1, 8, 8)), file)


@pytest.mark.parametrize("datatype", ["UINT8", "FP16", "FP32", "FP64"])
@pytest.mark.parametrize("shape", [("N", 3, 8, 12), ("N", 8, 12, 3), ("N", 1, 8, 12), ("N", 8, 12)])
def test_layout_and_channels_are_the_model_s(datatype: str, shape: Any) -> None:
    """Its shape determines them; UINT8 inputs get whole numbers from 0 to 255."""
    image = picture(12, 8)
    got = pixels(step_of(shape, datatype), saved(image, "PNG"), saved(image, "BMP"))
    assert got.shape == (2, *shape[1:])
    scale = 1 if datatype == "UINT8" else 255
    colours = np.asarray(image) if 3 in shape else np.asarray(image.convert("L"))[..., None]
    wanted = colours.transpose(2, 0, 1) if shape[1] in {1, 3} else colours
    wanted = wanted.reshape(shape[1:]) / scale
    np.testing.assert_allclose(got[0], wanted, atol=1e-3 if datatype == "FP16" else 1e-6)
    np.testing.assert_array_equal(got[0], got[1])


def test_channels_may_be_the_other_way_round() -> None:
    """Blue first, as OpenCV has them; grey of colours, where a model does not say how many."""
    file = saved(picture(12, 8), "PNG")
    plain = pixels(step_of(("N", 3, 8, 12)), file)
    np.testing.assert_array_equal(
        pixels(step_of(("N", 3, 8, 12), channels="bgr"), file), plain[:, ::-1]
    )
    open_shape = ("N", "c", "h", "w")
    grey = step_of(
        open_shape, channels="grey", layout="nhwc", size=(8, 12), mean=(0.5,), std=(2.0,)
    )
    assert pixels(grey, file).shape == (1, 8, 12, 1)


@pytest.mark.parametrize(
    ("shape", "datatype", "config", "says"),
    [
        (("N", 3, 224, 224), "FP32", {"size": (256, 256)}, r"size \[256, 256\] .* 256 is not 224"),
        (("N", 3, "h", "w"), "FP32", {}, r"image\.size: set \[height, width\]"),
        (("N", "c", "h", "w"), "FP32", {"size": (8, 8)}, "set nchw or nhwc"),
        (
            ("N", 4, 8, 8),
            "FP32",
            {},
            r"1 or 3 channels, but the model expects shape \[N, 4, 8, 8\]",
        ),
        (("N", 3, 8, 8), "FP32", {"channels": "grey"}, "gives 1 channels, but the model expects 3"),
        (("N", 64), "FP32", {}, r"but the model expects \[N, 64\]"),
        (("N", 3, 8, 8), "INT64", {}, "but the model expects INT64"),
        (("N", 3, 8, 8), "UINT8", {"mean": (0.5,)}, "the model expects UINT8"),
        (("N", 3, 8, 8), "FP32", {"mean": (0.5, 0.5)}, "mean has 2 numbers, .* 3 channels"),
        (("N", 3, 8, 8), "FP32", {"std": (0.0,)}, "std > 0"),
        (("N", 3, 8, 8), "FP32", {"mean": (123.7, 116.3, 103.5)}, "has 123.7, .* divide .* by 255"),
        (("N", 3, 8, 8), "FP32", {"size": (8, 8, 3)}, r"\[height, width\], got \[8, 8, 3\]"),
        (("N", 3, 8, 8), "FP32", {"shorter_side": 9}, "is for resize: shorter_side_then_crop"),
        (
            ("N", 3, 8, 8),
            "FP32",
            {"shorter_side": 7, "resize": "shorter_side_then_crop"},
            "shorter_side is 7, and the middle is 8 x 8",
        ),
    ],
)
def test_what_does_not_fit_the_model_is_told(
    shape: Any, datatype: str, config: dict[str, Any], says: str
) -> None:
    """The error contains the config's key and the model's input."""
    with pytest.raises(LoadFailed, match=says) as told:
        step_of(shape, datatype, **config)
    assert str(told.value).startswith("inputs.image: image")


def test_a_description_says_what_happens() -> None:
    """The description is one sentence."""
    step = step_of(("N", 3, 8, 12), resize="shorter_side_then_crop", mean=MEAN, std=STD)
    assert step.description == (
        "a picture (JPEG, PNG, WebP, GIF, BMP, TIFF): its shorter side becomes 12, and the middle "
        "becomes 8 x 12 pixels of rgb, from 0 to 1, less mean [0.485, 0.456, 0.406], divided by "
        "std [0.229, 0.224, 0.225]"
    )
    assert pixels(step, step.example[0]).shape == (1, 3, 8, 12)


@pytest.mark.parametrize(
    ("name", "datatype"),
    [("UINT8", onnx.TensorProto.UINT8), ("FP16", onnx.TensorProto.FLOAT16)],
)
async def test_a_model_runs_on_them(tmp_path: Path, name: str, datatype: int) -> None:
    """Several pictures of several sizes run together, in ONNX Runtime."""
    model = channel_means(datatype=datatype)
    onnx_models.save(model, tmp_path / "models/look/1/model.onnx")
    (tmp_path / "models/look/config.yaml").write_text("inputs: {image: {image: {}}}\n")
    files = [saved(picture(90, 70), "JPEG"), saved(picture(48, 32, seed=1), "PNG")]
    values = np.empty(2, np.object_)
    values[:] = files
    kept: dict[str, Any] = {"state": tmp_path / "state", "cache": tmp_path / "cache"}
    async with Runtime(models=tmp_path / "models", **kept) as runtime:
        answer: Any = await runtime.infer("look", {"image": values})
    wanted = [resized(file, 48, 32).mean(axis=(0, 1)) for file in files]
    scale = 1 if name == "UINT8" else 255
    np.testing.assert_allclose(answer["mean"], np.array(wanted) / scale, rtol=1e-2)


async def test_a_config_that_does_not_fit_makes_it_unavailable(tmp_path: Path) -> None:
    """The reason has the file, the key and both numbers."""
    onnx_models.save(channel_means(), tmp_path / "models/look/1/model.onnx")
    config = tmp_path / "models/look/config.yaml"
    config.write_text("inputs: {image: {image: {size: [9, 48]}}}\n")
    kept: dict[str, Any] = {"state": tmp_path / "state", "cache": tmp_path / "cache"}
    says = r"look/config\.yaml: inputs\.image: image\.size .* 9 is not 32"
    async with Runtime(models=tmp_path / "models", **kept) as runtime:
        with pytest.raises(NotReady, match=says):
            await runtime.infer("look", {"image": np.array([b""], np.object_)})
