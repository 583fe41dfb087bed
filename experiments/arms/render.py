"""Pictures from recordings: a still (PNG) and a short animation (WebP), one recording or two side by side.

python3 render.py RUN.trace [OTHER.trace] [--still arms.png] [--animation arms.webp] [--from S] [--seconds 8]

Rendering runs on the CPU by OSMesa (Debian's libosmesa6): about 70 ms a frame and recording. Times count from the
moment at which both arms follow, which is the plan's beginning. Without --from, the animation ends 1.5 s after the
first stop; without a stop, it shows the first transfer.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("MUJOCO_GL", "osmesa")  # before MuJoCo is imported

import mujoco
import numpy as np
from PIL import Image, ImageDraw, ImageFont

import cell
import tracefile
from datagram import FOLLOWING, STOPPED
from monitor import STOP_MM

WIDTH, HEIGHT = 480, 300
STILL_SCALE = 2
FRAME_MS = 80
GRAPH_MM = 6.0  # the caption's bar ends here
INK, PAPER, RED, GREEN = (30, 33, 38), (246, 246, 244), (200, 40, 40), (40, 130, 70)


class View:
    """Renders one recording. It holds an OpenGL context: close it."""

    def __init__(self, recording: tracefile.Recording, title: str, scale: int = 1):
        if not len(recording.records):
            raise ValueError(f"{title}: the recording has no records")
        self.recording, self.title, self.scale = recording, title, scale
        self.model = cell.build()
        self.data = mujoco.MjData(self.model)
        self.renderer = mujoco.Renderer(self.model, HEIGHT * scale, WIDTH * scale)
        self.renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        self.renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        # From where both arms follow, at the plan's beginning: so two recordings show the same phase.
        flags = recording.records["flags"]
        following = np.flatnonzero((flags & FOLLOWING != 0) & (flags & (FOLLOWING << 4) != 0))
        start = following[0] if len(following) else 0
        self.seconds = (recording.records["at_ns"] - recording.records["at_ns"][start]) * 1e-9
        distance = recording.distance_mm()
        # While the arms grip again after a release, the worst one stays: it is what the caption is about.
        self.worst = np.fmax.accumulate(np.nan_to_num(distance, nan=0.0))
        self.distance = distance

    def frame(self, at_s: float) -> Image.Image:
        """Returns the picture at `at_s` seconds (the last one when the recording is shorter), with its caption."""
        i = min(int(np.searchsorted(self.seconds, at_s)), len(self.seconds) - 1)
        record = self.recording.records[i]
        self.data.qpos[:] = record["qpos"]
        mujoco.mj_forward(self.model, self.data)
        self.renderer.update_scene(self.data, camera="front")
        scene = Image.fromarray(self.renderer.render())
        return self._caption(scene, self.distance[i], self.worst[i], bool(record["flags"] & STOPPED), self.seconds[i])

    def _caption(self, scene, now_mm: float, worst_mm: float, stopped: bool, at_s: float) -> Image.Image:
        s = self.scale
        strip = 46 * s
        image = Image.new("RGB", (scene.width, scene.height + strip), PAPER)
        image.paste(scene, (0, 0))
        draw = ImageDraw.Draw(image)
        big, small = ImageFont.load_default(15 * s), ImageFont.load_default(12 * s)
        top, left = scene.height, 10 * s
        draw.text((left, 7 * s), self.title, INK, big)
        reading = "no grip" if np.isnan(now_mm) else f"{now_mm:4.1f} mm apart"
        draw.text((left, top + 5 * s), f"{at_s:4.1f} s   {reading}   worst {worst_mm:.1f} mm", INK, small)
        # A bar from 0 to GRAPH_MM, with a mark where the protective stop is.
        width, y = scene.width - 2 * left, top + 27 * s
        scaled = min(0.0 if np.isnan(now_mm) else now_mm, GRAPH_MM) / GRAPH_MM
        colour = RED if stopped or scaled * GRAPH_MM > STOP_MM else GREEN
        draw.rectangle((left, y, left + width, y + 9 * s), (222, 222, 218))
        draw.rectangle((left, y, left + width * scaled, y + 9 * s), colour)
        x = left + width * STOP_MM / GRAPH_MM
        draw.line((x, y - 3 * s, x, y + 12 * s), INK, s)
        if stopped:
            text = "PROTECTIVE STOP"
            draw.text((scene.width - left - draw.textlength(text, big), 7 * s), text, RED, big)
        return image

    def stop_s(self) -> float | None:
        """Returns the second of the first protective stop."""
        stopped = np.flatnonzero(self.recording.records["flags"] & STOPPED)
        return float(self.seconds[stopped[0]]) if len(stopped) else None

    def carry_s(self) -> float:
        """Returns the second in which the first carry ends."""
        gripped = np.flatnonzero(~np.isnan(self.distance))
        return float(self.seconds[gripped[0]]) + 0.7 if len(gripped) else 0.0

    def close(self) -> None:
        """Frees the OpenGL context."""
        self.renderer.close()


def interesting_s(views: list[View]) -> float:
    """Returns the second to show: just after the first stop of any recording, or else the end of the first carry."""
    stops = [stop for stop in (view.stop_s() for view in views) if stop is not None]
    return min(stops) + 0.2 if stops else min(view.carry_s() for view in views)


def beside(images: list[Image.Image]) -> Image.Image:
    """Returns the images side by side, with a thin gap."""
    gap = 4 if len(images) > 1 else 0
    whole = Image.new("RGB", (sum(i.width for i in images) + gap * (len(images) - 1), images[0].height), INK)
    for n, image in enumerate(images):
        whole.paste(image, (n * (image.width + gap), 0))
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="+", type=Path, metavar="TRACE", help="one or two")
    parser.add_argument("--titles", nargs="+", help="one per recording; the files' names without it")
    parser.add_argument("--still", type=Path)
    parser.add_argument("--animation", type=Path)
    parser.add_argument("--from", dest="start", type=float, metavar="S", help="of the animation")
    parser.add_argument("--at", type=float, metavar="S", help="of the still")
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    titles = options.titles or [path.stem for path in options.recordings]
    if len(options.recordings) > 2 or len(titles) != len(options.recordings):
        parser.error("one or two recordings, and as many titles")
    recordings = [tracefile.read(path) for path in options.recordings]

    if options.still:
        views = [View(r, t, STILL_SCALE) for r, t in zip(recordings, titles)]
        at = options.at if options.at is not None else interesting_s(views)
        image = beside([v.frame(at) for v in views])
        image.quantize(256).save(options.still, optimize=True)
        print(f"{options.still}: at {at:.2f} s, {options.still.stat().st_size / 1e3:.0f} KB")
        for view in views:
            view.close()
    if options.animation:
        views = [View(r, t) for r, t in zip(recordings, titles)]
        start = options.start
        if start is None:
            start = max(0.0, interesting_s(views) + 1.5 - options.seconds)
        times = np.arange(start, start + options.seconds, FRAME_MS / 1e3)
        frames = [beside([v.frame(t) for v in views]) for t in times]
        frames[0].save(
            options.animation, save_all=True, append_images=frames[1:], duration=FRAME_MS, loop=0, quality=55, method=4
        )
        print(f"{options.animation}: {len(frames)} frames, {options.animation.stat().st_size / 1e6:.2f} MB")
        for view in views:
            view.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
