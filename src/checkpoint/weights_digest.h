// A digest of the weights that an engine holds.
#pragma once

#include <cstdint>

namespace fsdp {

class EngineParts;

// The same on every rank, for any number of ranks, strategy and units: a sum (mod 2^64) over the
// elements of all main shards, each mixed with its parameter's FQN and its place in the parameter's
// memory order. Two sets of weights that differ have the same one with a chance of about 2^-64; it
// is no defence against whoever means to deceive it. Collective, between passes; waits for what was
// issued, and reads this rank's shards once.
uint64_t digest_of_weights(const EngineParts& engine);

}  // namespace fsdp
