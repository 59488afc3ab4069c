// Error texts that several tests of the example compare.
#pragma once

#include <string>

namespace fsdp::testing {

inline const std::string kAnotherRun = "another run writes into the folder";
inline const std::string kAtMinusOne = "answer_start is -1, expected 0 or more (in code points)";
inline const std::string kHasNoQuestions = "the file contains no questions";
inline const std::string kLeftIncomplete = ", which a killed run left incomplete\n";
inline const std::string kRemedies = "hint: try in order of cost: ";
inline const std::string kStepBeyond = " of device memory per rank, but the memory limit is ";

}  // namespace fsdp::testing
