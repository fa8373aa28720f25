"""JAX's own random numbers, bit for bit, from programs without loops.

On a CPU, JAX compiles every call of Threefry as a loop of small steps, which take one decision more
time than its network does. Unrolled they are one kernel, quicker to run and to compile.

References:
    Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl
from jaxtyping import Array, Float, Int, Integer, Key, UInt32

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
Words = tuple[Array, Array]
HostWords = tuple[np.ndarray, np.ndarray]


def unrolled(key: Key[Array, "*n"]) -> Key[Array, "*n"]:
    """The same key, or keys; what follows from it is the same, and is computed without loops.

    Outside compiled programs, where it would be many, and of other generators than JAX's default,
    keys stay as they are. `jax.random.poisson` rejects unrolled keys, so they are not
    handed to what users may have written.
    """
    if not isinstance(key, jax.core.Tracer) or not is_known_generator(jax.random.key_impl(key)):
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_UNROLLED)


def fold_in(key: Key[Array, ""], number: int | Integer[Array, ""]) -> Key[Array, ""]:
    """As `jax.random.fold_in`, without loops."""
    quick = unrolled(key)
    folded = jax.random.fold_in(quick, number)
    if quick is key:
        return folded
    return jax.random.wrap_key_data(jax.random.key_data(folded), impl=jax.random.key_impl(key))


def is_known_generator(name: object = None) -> bool:
    """Whether the functions below compute what this generator of JAX does, by default the one set:
    numbers follow from their place alone by default.
    """
    config: Any = jax.config
    known = (name or config.jax_default_prng_impl) == "threefry2x32"
    return known and bool(config.jax_threefry_partitionable)


def host_fold_in(key: HostWords, numbers: Int[np.ndarray, " n"]) -> HostWords:
    """The keys of several numbers, in NumPy; number i gives what `jax.random.split` gives at i."""
    words = np.asarray(numbers, np.uint32)
    return _threefry(key, (np.zeros_like(words), words))


def host_uniforms(keys: HostWords, count: int, dtype: np.dtype) -> Float[np.ndarray, "n k"]:
    """As `jax.random.uniform` of each key, in NumPy."""
    places = np.arange(count, dtype=np.uint32)[None]
    high, low = _threefry((keys[0][:, None], keys[1][:, None]), (np.zeros_like(places), places))
    if dtype == np.float32:
        return ((high ^ low) >> np.uint32(9)).astype(np.float32) * np.float32(2.0**-23)
    bits = (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
    return (bits >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _threefry(key: Any, words: Any) -> Any:
    """Threefry-2x32 of twenty rounds, for any number of words, in JAX or in NumPy."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(PARITY))
    x, y = words[0] + keys[0], words[1] + keys[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation)))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def _counters(shape: tuple[int, ...]) -> Words:
    low = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    return jnp.zeros_like(low), low


def _seed(number: Any) -> UInt32[Array, " 2"]:
    number = jnp.asarray(number)
    wide = number.dtype.itemsize > 4
    high = (number >> 32).astype(jnp.uint32) if wide else jnp.zeros((), jnp.uint32)
    return jnp.stack([high, number.astype(jnp.uint32)])


def _fold_in(key: UInt32[Array, " 2"], number: Any) -> UInt32[Array, " 2"]:
    return jnp.stack(_threefry(key, tuple(_seed(number))))


def _split(key: UInt32[Array, " 2"], shape: tuple[int, ...]) -> UInt32[Array, "*n 2"]:
    return jnp.stack(_threefry(key, _counters(shape)), axis=-1)


def _bits(key: UInt32[Array, " 2"], width: int, shape: tuple[int, ...]) -> Array:
    # Kept apart, lest each of several uses of the numbers computes them anew.
    high, low = jax.lax.optimization_barrier(_threefry(key, _counters(shape)))
    if width == 64:
        return (high.astype(jnp.uint64) << jnp.uint64(32)) | low.astype(jnp.uint64)
    return (high ^ low).astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[width])


_UNROLLED = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_bits,
    fold_in=_fold_in,
    name="threefry2x32, unrolled",
    tag="fry",
)
