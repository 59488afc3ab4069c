// A digest of the weights that an engine holds.
#pragma once

#include <cstdint>

namespace fsdp {

class EngineParts;

// Returns a digest that is equal on every rank, and does not depend on the number of ranks,
// strategy or units. The digest is a sum (mod 2^64) over the elements of all main shards. Each
// element is mixed with its parameter's FQN and with its position in the parameter's memory order.
// Two different sets of weights have the same digest with a probability of about 2^-64. The digest
// does not protect against an attack. Collective, between passes. Waits for issued work, and reads
// this rank's shards once.
uint64_t digest_of_weights(const EngineParts& engine);

}  // namespace fsdp
