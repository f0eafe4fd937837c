"""Small drawn faces with five landmarks: a vision regression task with nothing to download.

Each face has its own position, size, tilt, turn of the head, proportions and light, among clutter that looks like
parts of faces. The points are CelebA's: eyes, nose and mouth corners, left and right as seen by the viewer.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from gradsieve.data.dataset import DataSet, Recipe, Rows, Source
from gradsieve.data.scaling import mean_and_std, standardise_targets
from gradsieve.data.validate import check_count
from gradsieve.seeds import generator

POINTS = ("left_eye", "right_eye", "nose", "left_mouth", "right_mouth")
OUTPUT_NAMES = tuple(f"{point}_{axis}" for point in POINTS for axis in "xy")
CHUNK = 256  # faces drawn at a time, so that their pixels stay in the CPU's cache


def load_landmarks(
    folder: Path | None = None, train: int = 4000, test: int = 1000, size: int = 32, seed: int = 0
) -> DataSet:
    """uint8 images (N, 1, size, size) and points (N, 10), standardised on train."""
    for name, value, least in (("train", train, 2), ("test", test, 1), ("size", size, 16), ("seed", seed, 0)):
        check_count(name, value, least)
    images, points = draw_faces(train, size, generator(seed, "landmarks", "train"))
    test_images, test_points = draw_faces(test, size, generator(seed, "landmarks", "test"))
    targets, test_targets = standardise_targets(OUTPUT_NAMES, points.flatten(1), test_points.flatten(1))
    pixels = mean_and_std(points.flatten(1))
    return DataSet("regression", Rows(images, targets), Rows(test_images, test_targets), OUTPUT_NAMES, pixels)


def draw_faces(count: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """uint8 images (count, 1, size, size), and the points (count, 5, 2): x and y in pixels, whole at pixel centres."""
    images, points = [], []
    for start in range(0, count, CHUNK):
        faces = _Faces(min(CHUNK, count - start), size, generator)
        images.append(faces.image())
        points.append(faces.points)
    return torch.cat(images), torch.cat(points)


class _Faces:
    """One chunk of faces.

    In the image, lengths are shares of its side. Along a face's own axes they are shares of half its height: u to the
    right and v down, with 0 in the middle of the face.
    """

    def __init__(self, count: int, size: int, generator: torch.Generator) -> None:
        self.count, self.size, self.generator = count, size, generator
        self._place_faces()
        self._place_parts()

    def draw(self, low: float, high: float, columns: int = 1) -> Tensor:
        return low + (high - low) * torch.rand(self.count, columns, generator=self.generator)  # (N, columns)

    def _place_faces(self) -> None:
        """Draw centres, sizes and tilts, and find the coordinates of every pixel along each face's own axes."""
        self.centre, self.height, tilt = self.draw(0.33, 0.67, 2), self.draw(0.28, 0.4), self.draw(-0.35, 0.35)
        self.along = torch.cat([tilt.cos(), tilt.sin()], 1) * self.height  # (N, 2), one step in u
        self.down = torch.cat([-tilt.sin(), tilt.cos()], 1) * self.height  # one step in v
        side = (torch.arange(self.size) + 0.5) / self.size
        y, x = (grid.flatten() for grid in torch.meshgrid(side, side, indexing="ij"))  # (size * size,)
        self.x, self.y = x - self.centre[:, :1], y - self.centre[:, 1:]
        along, down = self.along / self.height**2, self.down / self.height**2
        self.u = self.x * along[:, :1] + self.y * along[:, 1:]  # (N, size * size)
        self.v = self.x * down[:, :1] + self.y * down[:, 1:]
        self.sharpness = self.size * self.height  # pixels per unit of u or v

    def _place_parts(self) -> None:
        """Place eyes, nose and mouth. Turning the head shifts them all, the nose most."""
        turn, nod = self.draw(-0.2, 0.2), self.draw(-0.1, 0.1)
        self.eye_u, self.eye_v = self.draw(0.28, 0.42), self.draw(-0.3, -0.14) + nod
        self.nose_u, self.nose_v = 1.5 * turn, self.draw(0.12, 0.3) + 1.5 * nod
        self.mouth_u, self.mouth_v = self.draw(0.18, 0.38), self.draw(0.48, 0.64) + nod
        self.turn = turn
        ends = (turn - self.eye_u, turn + self.eye_u, self.nose_u, turn - self.mouth_u, turn + self.mouth_u)
        u = torch.cat(ends, 1)[..., None]  # (N, 5, 1)
        v = torch.cat([self.eye_v, self.eye_v, self.nose_v, self.mouth_v, self.mouth_v], 1)[..., None]
        points = self.centre[:, None] + u * self.along[:, None] + v * self.down[:, None]  # (N, 5, 2)
        self.points = points * self.size - 0.5

    def image(self) -> Tensor:
        """Paint from back to front, then add light, contrast and noise."""
        draw = self.draw
        canvas = self._background()
        for _ in range(5):
            self._paint_clutter(canvas, draw(0.1, 0.9))
        skin, dark = draw(0.55, 0.85), draw(0.0, 0.2)
        width = draw(0.7, 0.88)
        self._paint(canvas, self._ellipse(0, -0.18, width + 0.12, 1 + draw(0, 0.1)), draw(0.05, 0.95))  # hair
        self._paint(canvas, self._ellipse(0, 0, width, draw(0.92, 1)), skin)
        eye_size, brow_lift = draw(0.1, 0.17), draw(0.2, 0.28)
        opening = eye_size * draw(0.4, 0.9)
        for side in (-1, 1):
            eye = self.turn + side * self.eye_u
            self._paint(canvas, self._ellipse(eye, self.eye_v, 1.4 * eye_size, opening), skin + 0.2)
            self._paint(canvas, self._ellipse(eye, self.eye_v, 0.8 * eye_size, opening), dark)
            self._paint(canvas, self._ellipse(eye, self.eye_v - brow_lift, 1.6 * eye_size, 0.05), dark + 0.1)
        self._paint(canvas, self._ellipse(self.nose_u, self.nose_v, draw(0.1, 0.16), 0.09), skin - draw(0.25, 0.4))
        bridge = (self.nose_u + self.turn) / 2, (self.nose_v + self.eye_v) / 2
        self._paint(canvas, self._ellipse(*bridge, 0.05, 0.5 * (self.nose_v - self.eye_v)), skin + 0.12)
        self._paint(canvas, self._mouth(), skin - draw(0.3, 0.5))
        self._paint_clutter(canvas, draw(0.1, 0.9))  # in front of the face: it may hide a part
        slope = draw(-0.5, 0.5, 2)
        light = 1 + slope[:, :1] * self.x + slope[:, 1:] * self.y
        photo = 0.5 + draw(0.65, 1) * (canvas * light - 0.5) + draw(-0.1, 0.1)
        photo += draw(0.005, 0.03) * torch.randn(canvas.shape, generator=self.generator)
        return (photo * 255).clamp(0, 255).to(torch.uint8).view(-1, 1, self.size, self.size)

    def _background(self) -> Tensor:
        """Smooth blotches: a 4x4 grid of random levels, interpolated over the image."""
        levels = self.draw(0.1, 0.9) + 0.2 * torch.randn(self.count, 16, generator=self.generator)
        smooth = F.interpolate(levels.view(-1, 1, 4, 4), size=(self.size, self.size), mode="bilinear")
        return smooth.flatten(1)  # (N, size * size)

    def _ellipse(self, u: Tensor | float, v: Tensor | float, half_u: Tensor | float, half_v: Tensor | float) -> Tensor:
        """The mask of an ellipse: 1 inside, 0 outside, with an edge about a pixel wide."""
        inside = 1 - ((self.u - u) / half_u) ** 2 - ((self.v - v) / half_v) ** 2
        thinner = torch.minimum(torch.as_tensor(half_u), torch.as_tensor(half_v))
        return (inside * (0.5 * thinner * self.sharpness) + 0.5).clamp_(0, 1)

    def _mouth(self) -> Tensor:
        """The mask of a mouth: a band from corner to corner that curves up or down in between."""
        across = ((self.u - self.turn) / self.mouth_u) ** 2  # 1 at the corners
        middle = self.mouth_v + self.draw(-0.08, 0.14) * (1 - across)
        thickness = self.draw(0.03, 0.09)
        band = (thickness - (self.v - middle).abs()) * self.sharpness + 0.5
        ends = (1 - across) * (0.5 * self.mouth_u * self.sharpness) + 0.5
        return torch.minimum(band, ends).clamp_(0, 1)

    def _paint_clutter(self, canvas: Tensor, shade: Tensor) -> None:
        """A blob or bar around the face or across its edge, as big as a part of it."""
        angle, distance = self.draw(0, 2 * torch.pi), self.draw(0.8, 2)
        spot = self._ellipse(distance * angle.cos(), distance * angle.sin(), self.draw(0.06, 0.4), self.draw(0.06, 0.4))
        self._paint(canvas, spot, shade)

    @staticmethod
    def _paint(canvas: Tensor, mask: Tensor, shade: Tensor) -> None:
        canvas.lerp_(shade.expand_as(canvas), mask)


LANDMARKS = Source(
    summary="drawn 32x32 grey faces with five landmarks; nothing to download",
    tasks=("regression",),
    load=load_landmarks,
    recipe=Recipe(
        model="landmark-cnn",
        epochs=25,
        batch_size=128,
        learning_rate=4e-3,
        ramp=1,
        model_options={"width": 0.5, "features": 128},
    ),
)
