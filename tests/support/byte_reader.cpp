#include "support/byte_reader.h"

#include "fsdp/program_text.h"

namespace fsdp {
namespace {

constexpr size_t kMaxLineBytes = 1500;

std::string& refusal_line() {
  static std::string line;
  return line;
}

}  // namespace

void demand(bool sound, const std::string& otherwise) {
  if (!sound) throw Finding(otherwise);
}

const std::string& last_refusal() { return refusal_line(); }

void check_refusal(const Error& error) {
  std::string& line = refusal_line();
  line = error_line(error, {});
  demand(line.size() <= kMaxLineBytes, "a refusal of " + std::to_string(line.size()) + " bytes");
  demand(printable(line) == line, "a refusal that is not one plain line of UTF-8");
}

}  // namespace fsdp
