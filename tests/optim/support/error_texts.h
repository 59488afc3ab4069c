// Error texts that several tests of this layer compare.
#pragma once

#include <string>

namespace fsdp::testing {

inline constexpr const char* kAddedAfterClip =
    "gradients were added after clip_grad_norm measured them";
inline constexpr const char* kLearningRateHint = "hint: use a finite learning rate of 0 or more";
inline const std::string kRemedies = "try in order of cost: ";

// Begins the error of a second optimizer of `parameter`. `optimizers` names both.
inline std::string two_optimizers(const std::string& parameter, const std::string& optimizers) {
  return "parameter '" + parameter + "' would have two optimizers: " + optimizers;
}

// Begins the error of an allocation of `bytes` beyond the limit.
inline std::string beyond_limit(const std::string& bytes) {
  return "out of memory: " + bytes + " are needed, but the limit of ";
}

}  // namespace fsdp::testing
