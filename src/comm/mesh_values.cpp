#include "fsdp/mesh_values.h"

#include <fmt/format.h>
#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include "comm/mesh_state.h"
#include "runtime/device.h"

namespace fsdp {
namespace {

template <class T>
void fold_over_ranks(const Mesh& mesh, std::span<T> values, DType dtype, ReduceOp op,
                     std::string_view label) {
  // The host's compute stream is inline, so the values are complete on return.
  const CollectivePart part{.send = values.data(),
                            .recv = values.data(),
                            .numel = static_cast<int64_t>(values.size()),
                            .dtype = dtype};
  state_of(mesh).control_communicator().all_reduce(
      {&part, 1}, op, state_of(mesh).next_control_tag(Operation::kAllReduce, part.numel, label),
      cpu_device().compute_stream());
}

template <class T>
std::vector<T> gather_over_ranks(const Mesh& mesh, std::span<const T> values, DType dtype,
                                 std::string_view label) {
  std::vector<T> gathered(values.size() * mesh.world_size());
  const CollectivePart part{.send = values.data(),
                            .recv = gathered.data(),
                            .numel = static_cast<int64_t>(values.size()),
                            .dtype = dtype};
  state_of(mesh).control_communicator().all_gather(
      {&part, 1}, state_of(mesh).next_control_tag(Operation::kAllGather, part.numel, label),
      cpu_device().compute_stream());
  return gathered;
}

[[noreturn]] void refuse_sum(double sum, std::string_view label) {
  throw InvalidArgument(
      {.what = fmt::format(
           "the sum of the ranks' integers is about {:.3g}, which does not fit an int64", sum),
       .where = fmt::format("'{}'", label),
       .cause = "an int64 holds at most 9223372036854775807",
       .hint = "pass doubles instead of integers"});
}

}  // namespace

void mesh_detail::refuse_weight(double weight, std::string_view label) {
  throw InvalidArgument(
      {.what = fmt::format("a rank's weight in a mean is {}, expected a finite number of 0 or more",
                           weight),
       .where = fmt::format("'{}'", label),
       .hint = "pass the rank's number of labels or samples"});
}

void mesh_detail::refuse_elements(int64_t numel, std::string_view label) {
  throw InvalidArgument(
      {.what = fmt::format(
           "a value to reduce over the ranks is a tensor of {} elements, expected 1 element",
           numel),
       .where = fmt::format("'{}'", label),
       .hint = "reduce the tensor to one element (loss.mean()), pass several tensors as a "
               "std::array, or gather whole arrays with Mesh::gather"});
}

void mesh_detail::refuse_beyond_int64(uint64_t value, std::string_view label) {
  throw InvalidArgument(
      {.what = fmt::format("value {} exceeds int64's maximum 9223372036854775807", value),
       .where = fmt::format("'{}'", label),
       .hint = "pass the value as a double"});
}

void Mesh::fold(std::span<double> values, Fold how, std::string_view label) const {
  fold_over_ranks(*this, values, DType::kFloat64,
                  how == Fold::kSum ? ReduceOp::kSum : ReduceOp::kMax, label);
}

// Sums the two 32-bit halves of each number separately, so that no intermediate sum overflows: over
// 65536 ranks a sum of halves has 48 bits. Maxima cannot overflow.
void Mesh::fold(std::span<int64_t> values, Fold how, std::string_view label) const {
  if (how == Fold::kMax) {
    return fold_over_ranks(*this, values, DType::kInt64, ReduceOp::kMax, label);
  }
  std::vector<int64_t> halves;
  for (const int64_t value : values) {
    halves.push_back(value >> 32);
    halves.push_back(value & 0xffffffff);
  }
  fold_over_ranks<int64_t>(*this, halves, DType::kInt64, ReduceOp::kSum, label);
  for (size_t i = 0; i < values.size(); ++i) {
    // All ranks form the same sum, so if it exceeds 64 bits, all of them throw.
    const __int128 sum = (static_cast<__int128>(halves[2 * i]) << 32) + halves[2 * i + 1];
    values[i] = static_cast<int64_t>(sum);
    if (values[i] != sum) refuse_sum(static_cast<double>(sum), label);
  }
}

std::vector<float> Mesh::gather(std::span<const float> values, std::string_view label) const {
  return gather_over_ranks(*this, values, DType::kFloat32, label);
}

std::vector<double> Mesh::gather(std::span<const double> values, std::string_view label) const {
  return gather_over_ranks(*this, values, DType::kFloat64, label);
}

std::vector<int64_t> Mesh::gather(std::span<const int64_t> values, std::string_view label) const {
  return gather_over_ranks(*this, values, DType::kInt64, label);
}

}  // namespace fsdp
