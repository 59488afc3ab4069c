#include "comm/ring_bytes.h"

namespace fsdp {
namespace {

// Returns the bytes of the whole tensor. For all_gather and reduce_scatter `parts` count one rank's
// piece only.
int64_t tensor_bytes(Operation operation, std::span<const CollectivePart> parts, int size) {
  const OperationTraits traits = traits_of(operation);
  int64_t bytes = 0;
  for (const CollectivePart& part : parts) bytes += part.numel * size_of(part.dtype);
  return traits.sends_to_each || traits.receives_from_each ? bytes * size : bytes;
}

}  // namespace

int64_t ring_bytes(Operation operation, std::span<const CollectivePart> parts, int size) {
  if (size == 1) return 0;
  const int64_t bytes = tensor_bytes(operation, parts, size);
  switch (operation) {
    case Operation::kAllGather:
    case Operation::kReduceScatter:
      // The division is exact, because for these operations tensor_bytes() multiplies by `size`.
      return bytes / size * (size - 1);
    case Operation::kAllReduce:
      return (2 * (size - 1) * bytes + size - 1) / size;
    case Operation::kBroadcast:
      return bytes;
    case Operation::kBarrier:
      return 0;
  }
  return 0;
}

int64_t bytes_to_other_hosts(Operation operation, std::span<const CollectivePart> parts, int size,
                             int hosts) {
  const int64_t bytes = tensor_bytes(operation, parts, size) * (hosts - 1);
  switch (operation) {
    case Operation::kAllGather:
    case Operation::kReduceScatter:
      return bytes / size;  // exact, see ring_bytes
    case Operation::kAllReduce: {
      const bool whole = tensor_bytes(operation, parts, size) <= kWholeAllReduceBytes;
      return whole ? bytes : (2 * bytes + size - 1) / size;
    }
    case Operation::kBroadcast:
      return (bytes + size - 1) / size;
    case Operation::kBarrier:
      return 0;
  }
  return 0;
}

}  // namespace fsdp
