// Defines the classes of the answer-type head of Natural Questions, numbered as in the baseline.
#pragma once

#include <cstdint>

namespace bert_qa {

enum class AnswerType : uint8_t { kUnknown, kYes, kNo, kShort, kLong };
inline constexpr int64_t kAnswerTypes = 5;

}  // namespace bert_qa
