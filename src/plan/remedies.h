// A remedy is a change that lowers a step's device memory. Out-of-memory errors and fsdp-plan quote
// the remedies.
#pragma once

#include <fsdp/options.h>

#include <string_view>
#include <vector>

namespace fsdp {

enum class RemedyKind : uint8_t {
  kOption,      // a change of Options: `apply`
  kReduceMore,  // let backwards reduce instead of keeping whole gradients
  kSmallerBatch,
  kMoreRanks,
};

struct Remedy {
  RemedyKind kind = RemedyKind::kOption;
  std::string_view text;                      // "prefetch_units = 0"
  std::string_view flag;                      // "--prefetch 0"; empty if there is no flag
  void (*apply)(Options& options) = nullptr;  // kOption only
};

// The circumstances, besides the options, on which remedies depend.
struct RemedyCase {
  bool gathers = true;  // parameters are gathered into slots
  bool one_rank = false;
  bool reduces = true;        // false under GradSync: backwards keep whole gradients
  bool for_tensors = true;    // LibTorch's tensors count, not only the engine's buffers
  bool host_is_other = true;  // host memory is outside the limit
};

// Returns the remedies that `options` do not use yet, cheapest first. The order is: remedies that
// cost communication, remedies that cost compute, remedies that cost transfers to the host,
// remedies that change the result of the computation.
std::vector<Remedy> remedies(const Options& options, const RemedyCase& of);

}  // namespace fsdp
