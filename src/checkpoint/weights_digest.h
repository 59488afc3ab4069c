// A digest of the weights that an engine holds.
#pragma once

#include <cstdint>

namespace fsdp {

class EngineParts;

// Returns a digest that is the same on every rank, and for any number of ranks, strategy and units:
// a sum (mod 2^64) over the elements of all main shards, each mixed with its parameter's FQN and
// its place in the parameter's memory order. Two different sets of weights have the same digest
// with a probability of about 2^-64; it does not protect against an attack. Collective, between
// passes; waits for issued work, and reads this rank's shards once.
uint64_t digest_of_weights(const EngineParts& engine);

}  // namespace fsdp
