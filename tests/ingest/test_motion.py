"""What counts as motion, and which frames the detector is spared."""

from __future__ import annotations

from itertools import pairwise

import cv2
import numpy as np
import pytest

from ingest.frame import Frame
from ingest.motion import MotionDetector, MotionGate
from pipeline.config import MotionConfig

RNG = np.random.default_rng(5)
HEIGHT, WIDTH = 576, 704
FPS = 10
# Patches of 60 to 130 grey levels, some fifteen pixels wide.
SCENE = cv2.resize(RNG.integers(60, 130, (36, 44, 3), dtype=np.uint8), (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)


NOISE = [RNG.normal(0, 1, SCENE.shape).astype(np.float32) for _ in range(7)]


def noisy(scene: np.ndarray, sigma: float = 4.0) -> np.ndarray:
    """One of seven patterns of noise, anew each time mirrored and shifted in one of many ways."""
    noise = np.roll(NOISE[RNG.integers(7)], RNG.integers(WIDTH), axis=1)[:: RNG.choice([-1, 1])]
    shown = cv2.addWeighted(scene.astype(np.float32), 1.0, noise, sigma, 0.0)
    return np.clip(shown, 0, 255).astype(np.uint8)


def with_person(x: float, height: int = 60, shade: int = 30, scene: np.ndarray = SCENE) -> np.ndarray:
    """Somebody with feet at the height of 400; a third as wide as high."""
    image = scene.copy()
    image[400 - height : 400, round(x) : round(x) + height // 3] = shade
    return image


def motion(images, config: MotionConfig | None = None, fps: float = FPS) -> list[bool]:
    """Whether each of the pictures moved, after the first."""
    detector = MotionDetector(config or MotionConfig())
    return [detector.sees(image, number / fps) for number, image in enumerate(images)][1:]


def test_the_first_picture_counts_as_motion_for_somebody_may_stand_there():
    assert MotionDetector(MotionConfig()).sees(SCENE, 0.0)


@pytest.mark.parametrize("sigma", [0.0, 4.0, 10.0])
def test_a_still_scene_has_none_whatever_the_sensors_noise(sigma):
    moved = motion(noisy(SCENE, sigma) for _ in range(80))
    assert not any(moved[10:]), "once the noise is known"


@pytest.mark.parametrize("speed", [1, 3, 12])
@pytest.mark.parametrize("height", [48, 160])
def test_a_person_who_walks_is_seen_all_the_time(speed, height):
    """Given somebody who goes 10 to 120 pixels a second, and noise."""
    still = [noisy(SCENE) for _ in range(20)]
    moved = motion([*still, *(noisy(with_person(100 + speed * step, height)) for step in range(40))])
    assert not any(moved[:19])
    assert np.mean(moved[20:]) > 0.9, moved


def test_a_person_in_clothes_of_nearly_the_background_is_seen():
    grey = np.full_like(SCENE, 120)
    moved = motion(
        [*(noisy(grey) for _ in range(20)), *(noisy(with_person(100 + 4 * s, 90, 140, grey)) for s in range(30))]
    )
    assert np.mean(moved[20:]) > 0.9


def test_what_stays_becomes_the_background():
    """Given a chair that was moved, then it stops being motion within seconds."""
    moved = motion([*(noisy(SCENE) for _ in range(10)), *(noisy(with_person(300, 120)) for _ in range(200))])
    assert moved[10]
    assert not any(moved[130:])


def test_dusk_and_exposure_are_no_motion():
    """Given brightness that sinks by 33 levels within 10 s, and one that jumps up and down by 10."""
    assert not any(motion(noisy(SCENE - np.float32(step / 3)) for step in range(100)))
    assert not any(motion(noisy(SCENE + np.float32(10 * (step % 20 // 10))) for step in range(100)))


def test_a_light_that_is_switched_on_opens_it_once_not_for_ever():
    lit = np.clip((SCENE - 60.0) * 2.5 + 60, 0, 255)
    moved = motion([*(noisy(SCENE) for _ in range(20)), *(noisy(lit) for _ in range(60))])
    assert moved[19]
    assert sum(moved) <= 5


def test_a_patch_of_light_or_a_cloud_over_half_the_scene_ends_by_itself():
    shaded = SCENE.copy()
    shaded[:, :300] //= 2
    moved = motion([*(noisy(SCENE) for _ in range(20)), *(noisy(shaded) for _ in range(300))])
    assert moved[19]
    assert not any(moved[150:])


def test_a_tree_in_the_wind_is_known_after_a_while_and_a_person_elsewhere_still_seen():
    def tree(step: int, person_at: int | None = None) -> np.ndarray:
        image = SCENE.copy() if person_at is None else with_person(person_at, 90)
        image[50:200, 500:620] = 60 + (RNG.integers(0, 2, (150 // 15, 120 // 15, 1)).repeat(15, 0).repeat(15, 1)) * 50
        return noisy(image)

    moved = motion([*(tree(step) for step in range(400)), *(tree(step, 100 + 5 * step) for step in range(40))])
    assert np.mean(moved[300:399]) < 0.1, np.mean(moved[300:399])
    assert np.mean(moved[400:]) > 0.9


def test_a_motion_mask_silences_what_happens_under_it():
    masked = MotionConfig(masks=[[[0, 0.5], [0.6, 0.5], [0.6, 0.75], [0, 0.75]]])
    walk = [*(noisy(SCENE) for _ in range(10)), *(noisy(with_person(20 + 16 * step, 90)) for step in range(40))]
    moved = motion(walk, masked)
    inside = [step for step in range(40) if 20 + 16 * step + 30 < 0.6 * WIDTH - 8]
    assert not any(moved[9 + step] for step in inside)
    assert any(moved[9 + len(inside) :]), "who leaves the mask is seen"


def test_the_least_area_keeps_birds_out():
    large = MotionConfig(min_area=0.01)
    bird = [*(noisy(SCENE) for _ in range(10)), *(noisy(with_person(100 + 9 * step, 40)) for step in range(30))]
    assert any(motion(bird))
    assert not any(motion(bird, large))


def test_another_size_begins_anew():
    detector = MotionDetector(MotionConfig())
    assert detector.sees(SCENE, 0.0)
    assert not detector.sees(SCENE, 0.1)
    assert detector.sees(SCENE[:480, :640], 0.2)
    assert not detector.sees(SCENE[:480, :640], 0.3)


@pytest.mark.parametrize("shape", [(16, 16), (1, 1), (3, 400), (2160, 3840), (361, 641)])
def test_any_size_will_do(shape):
    detector = MotionDetector(MotionConfig())
    image = np.zeros((*shape, 3), dtype=np.uint8)
    assert detector.sees(image, 0.0)
    assert not detector.sees(image, 0.1)


# -- The gate --------------------------------------------------------------------------------------------------------


class Look:
    """A gate over a scene, ten frames a second; counts what the detector is asked to look at."""

    def __init__(self, **settings) -> None:
        self.gate = MotionGate(MotionConfig(**settings), lost_s=2.0)
        self.now = 0.0

    def show(self, image: np.ndarray, frames: int, in_view: bool = False, connection: int = 1) -> list[bool]:
        wanted = []
        for _ in range(frames):
            self.now += 0.1
            wanted.append(self.gate.wants(Frame("cam", 1, image, self.now, self.now, connection), in_view))
        return wanted


def test_a_still_scene_costs_one_look_in_ten_seconds():
    look = Look()
    begin = look.show(SCENE, 30)
    assert all(begin[:20]), "the first pictures after connecting"
    assert sum(look.show(SCENE, 1000)) == pytest.approx(10, abs=1)


def test_without_the_look_every_now_and_then_it_costs_none():
    look = Look(look_every_s=0, hold_s=0.5)
    look.show(SCENE, 10)
    assert sum(look.show(SCENE, 1000)) == 0


def test_motion_opens_it_and_hold_keeps_it_open():
    look = Look(hold_s=1.0, look_every_s=0)
    look.show(SCENE, 50)
    assert look.show(with_person(100), 1) == [True]
    after = look.show(SCENE, 40)
    assert all(after[:9])
    assert not any(after[20:])


def test_somebody_in_view_who_does_not_move_is_looked_at_twice_a_second():
    look = Look()
    look.show(with_person(100), 100)
    wanted = look.show(with_person(100), 100, in_view=True)
    assert sum(wanted) == pytest.approx(20, abs=2)


def test_no_pause_is_so_long_that_a_track_is_lost_meanwhile():
    gate = MotionGate(MotionConfig(still_fps=0.1, hold_s=0, look_every_s=0), lost_s=1.0)
    times = [n / 10 for n in range(100)]
    looked = [t for t in times if gate.wants(Frame("cam", 1, SCENE, t, t, 1), True)]
    assert max(b - a for a, b in pairwise(looked)) <= 0.6


def test_a_new_connection_is_looked_at():
    look = Look(look_every_s=0)
    look.show(SCENE, 50)
    assert not any(look.show(SCENE, 20))
    assert all(look.show(SCENE, 10, connection=2))


def test_switched_off_it_lets_everything_pass():
    look = Look(enabled=False)
    assert all(look.show(SCENE, 50))
    assert look.gate.is_open(1e9)
