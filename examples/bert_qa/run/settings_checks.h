// Checks that the settings of a command fit together.
#pragma once

#include <string>

#include "bert_qa/run/settings.h"

namespace bert_qa {

// Throws InvalidArgument kUsage.
[[noreturn]] void refuse(std::string what, std::string hint);

// Sets the metric of EvaluationOptions. Errors: InvalidArgument kUsage if settings are missing or
// do not fit together; the hint names the flag.
void check_settings(Settings& settings);

}  // namespace bert_qa
