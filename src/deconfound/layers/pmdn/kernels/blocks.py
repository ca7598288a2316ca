"""What the small kernels share: where sampled features lie, and how a second kernel takes over from the first."""
# mypy: ignore-errors

from deconfound.layers.pmdn.kernels.language import jit, let_next_begin, tl, wait_for_previous


@jit
def memory_order(features, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr):
    """Where features lie in a sample whose channels are last in memory; CHANNELS = 0 for the usual order."""
    if CHANNELS > 0:
        features = (features % POSITIONS) * CHANNELS + features // POSITIONS
    return features


@jit
def feature_of(sampled, apart, RUN: tl.constexpr):
    """The features that are sampled: the first RUN of every `apart`."""
    return sampled // RUN * apart + sampled % RUN


@jit
def start_counting(counter, EARLY: tl.constexpr):
    """For the next kernel, whose blocks are counted; with EARLY they may begin, and wait in `take_over`."""
    if EARLY:
        let_next_begin()
    if tl.program_id(0) + tl.program_id(1) == 0:
        tl.store(counter, 0.0)


@jit
def take_over(EARLY: tl.constexpr):
    """Wait until the kernel before has ended, where this one began before that, and let the next begin as well."""
    if EARLY:
        wait_for_previous()
        let_next_begin()


@jit
def is_last_block(counter, blocks):
    """Whether all other blocks have come here before, so that what they wrote can be read."""
    tl.debug_barrier()  # what this block's threads wrote comes before it is counted
    return tl.atomic_add(counter, 1.0) == blocks - 1
