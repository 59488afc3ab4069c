#include "checkpoint/save_failure.h"

#include <fmt/format.h>

#include <exception>
#include <string>

#include "fsdp/program_text.h"

namespace fsdp {

std::string text_of(const Outcome& outcome) {
  try {
    std::rethrow_exception(outcome.mine);
  } catch (const std::exception& error) {
    return error.what();
  }
}

ErrorText save_failure_text(const Outcome& outcome, const SaveFailure& failure) {
  ErrorText text;
  try {
    std::rethrow_exception(outcome.mine);
  } catch (const Error& error) {
    text = error.text();
  }
  text.what = fmt::format("the checkpoint of step {} was not saved: {}", failure.step, text.what);
  if (failure.missing_bytes > 0) {
    text.hint = fmt::format("free {}", format_bytes(failure.missing_bytes));
  }
  text.hint +=
      fmt::format("{}{}", text.hint.empty() ? "" : "; ",
                  failure.whole_step >= 0
                      ? fmt::format("the checkpoint of step {} is whole", failure.whole_step)
                      : std::string("there is no earlier checkpoint of this run"));
  return text;
}

}  // namespace fsdp
