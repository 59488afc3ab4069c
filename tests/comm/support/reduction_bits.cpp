#include "comm/support/reduction_bits.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "comm/job/fingerprint.h"
#include "runtime/buffer.h"
#include "support/cpu_streams.h"

namespace fsdp::testing {
namespace {

// Fills the buffer with numbers of very different magnitudes, so that each order of summation
// rounds differently.
void fill(const Buffer& buffer, DType dtype, int64_t numel, int rank) {
  for (int64_t i = 0; i < numel; ++i) {
    const auto fraction = static_cast<double>((i * 7919 + rank * 104'729) % 10'007 - 5003) / 5003;
    const double value = fraction * static_cast<double>(1 << ((i + rank * 3) % 9));
    if (dtype == DType::kFloat64) {
      std::memcpy(buffer.at(i * 8), &value, 8);
      continue;
    }
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    if (dtype == DType::kFloat32) {
      std::memcpy(buffer.at(i * 4), &bits, 4);
    } else {
      // For bfloat16, the upper half of the bits is used. For float16, the mask produces a finite
      // number of either sign.
      const auto half =
          static_cast<uint16_t>(dtype == DType::kBFloat16 ? bits >> 16 : (bits >> 9) & 0xbbff);
      std::memcpy(buffer.at(i * 2), &half, 2);
    }
  }
}

uint64_t hash_of(uint64_t hash, const Buffer& buffer, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, buffer.at(at), std::min<int64_t>(8, bytes - at));
    hash = mix(hash, word);
  }
  return hash;
}

}  // namespace

std::string reduction_bits(Communicator& communicator, int64_t numel) {
  const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "bits");
  const int size = communicator.size();
  const int rank = communicator.rank();
  uint64_t hash = 0;
  for (const bool in_peer_memory : {false, true}) {
    const auto make = [&](int64_t bytes) {
      return in_peer_memory ? communicator.allocate(bytes) : allocate_host(bytes);
    };
    for (const DType dtype :
         {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
      const int64_t bytes = numel * size_of(dtype);
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        const Buffer whole = make(bytes * size);
        const Buffer reduced = make(bytes);
        fill(whole, dtype, numel * size, rank);
        const CollectivePart reduce{whole.data(), reduced.data(), numel, dtype};
        communicator.all_reduce({&reduce, 1}, op, {.label = "bits"}, *stream);
        hash = hash_of(hash, reduced, bytes);
        const CollectivePart scatter{whole.data(), whole.at(rank * bytes), numel, dtype};
        communicator.reduce_scatter({&scatter, 1}, op, {.label = "bits"}, *stream);
        const CollectivePart gather{whole.at(rank * bytes), whole.data(), numel, dtype};
        communicator.all_gather({&gather, 1}, {.label = "bits"}, *stream);
        hash = hash_of(hash, whole, bytes * size);
      }
    }
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace fsdp::testing
