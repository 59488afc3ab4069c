// TrustRatios: the trust ratios of LAMB and LARS, computed from norms of whole parameters
// (kernels/trust_ratios.h).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "engine/chosen_parameters.h"
#include "engine/engine_parts.h"
#include "kernels/trust_ratios.h"
#include "runtime/buffer.h"

namespace fsdp {

// How an optimizer computes its ratios.
struct TrustRule {
  kernels::TrustFormula formula;
  bool adds_decay = false;  // true: the weight decay is part of the formula, as in LARS
  // false: a parameter without weight decay has the ratio 1.
  bool always_adapt = true;
};

// Not thread-safe: the backward scheduler's mutex must be held.
class TrustRatios {
 public:
  // Plans the norms of the chosen parameters. Waits for work on the main state's stream. The
  // arguments must outlive this object.
  TrustRatios(EngineParts& engine, const ChosenParameters& chosen);
  ~TrustRatios();
  TrustRatios(const TrustRatios&) = delete;
  TrustRatios& operator=(const TrustRatios&) = delete;

  // An update of this rank's elements of one parameter.
  struct Adapted {
    int unit = 0;
    int parameter = 0;
    size_t update = 0;  // index into `updates`
  };
  // Issues the computation of the ratios for the next update by `rule`, and sets the updates'
  // `trust_ratio`. Sends one all_reduce if main shards are cut. Collective.
  void compute(std::span<kernels::UpdateSegment> updates, std::span<const Adapted> adapted,
               const kernels::UpdateRule& rule, const TrustRule& trust, const float* grad_scale);

 private:
  // A node of this rank's interval. Element `begin` of the interval is its first element.
  struct OwnNode {
    int64_t begin = 0;
    int64_t numel = 0;
    int32_t slot = 0;  // index into the sums
  };
  struct Tree {
    std::vector<OwnNode> own;  // empty if another rank sums this rank's slice
    int32_t first_join = 0;
    int32_t join_count = 0;
    int32_t root = 0;
    int32_t ratio = 0;  // index into ratios_
  };
  void plan(const EngineUnit& unit, int parameter);
  kernels::SquareSums* own_sums() const;
  kernels::SquareSums* all_sums() const;

  EngineParts& engine_;
  bool is_cut_ = false;
  std::map<std::pair<int, int>, Tree> trees_;  // by unit and parameter
  std::vector<kernels::NodeJoin> planned_joins_;
  int32_t slots_ = 0;
  std::map<int, std::vector<int64_t>> blocks_;  // of sum_squares, by unit and slice
  Buffer sums_;     // this rank's sums, followed by the sums of all ranks if main shards are cut
  Buffer joins_;    // planned_joins_
  Buffer ratios_;   // a float for each parameter
  Buffer scratch_;  // of sum_squares
  int64_t bytes_ = 0;
};

}  // namespace fsdp
