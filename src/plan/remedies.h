// What lets a step take less of a device: for errors, and for who plans.
#pragma once

#include <fsdp/options.h>

#include <string_view>
#include <vector>

namespace fsdp {

enum class RemedyKind : uint8_t {
  kOption,      // `apply` makes it
  kReduceMore,  // backwards that reduce instead of keeping whole gradients
  kSmallerBatch,
  kMoreRanks,
};

struct Remedy {
  RemedyKind kind = RemedyKind::kOption;
  std::string_view text;                      // "prefetch_units = 0"
  std::string_view flag;                      // "--prefetch 0"; empty where no flag does it
  void (*apply)(Options& options) = nullptr;  // of kOption
};

// What a remedy depends on beside the options.
struct RemedyCase {
  bool gathers = true;  // parameters are gathered into slots
  bool one_rank = false;
  bool reduces = true;        // as backwards do, but under GradSync
  bool for_tensors = true;    // LibTorch's count, too, and not the engine's own buffers alone
  bool host_is_other = true;  // what lies on the host does not count
};

// What these options do not do yet, the cheapest first: in communication, then in computing, then
// in transfers to the host, then in what is computed.
std::vector<Remedy> remedies(const Options& options, const RemedyCase& of);

}  // namespace fsdp
