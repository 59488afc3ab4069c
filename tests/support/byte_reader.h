// A check of readers of untrusted files. For any bytes a reader must return a sound result, or
// throw an error that its header promises and that prints as one short line.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "fsdp/error.h"

namespace fsdp {

enum class Verdict : uint8_t { kAccepted, kRefused };

// An error of the reader under test: it did something else.
class Finding : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Throws Finding with `otherwise` if not `sound`.
void demand(bool sound, const std::string& otherwise);

struct ByteReader {
  std::string_view name;
  // Errors: Finding, and any other exception that breaks the reader's promise.
  Verdict (*read)(std::string_view bytes);
  // The memory it may hold at once: `bytes_a_byte` times the size of its input, and 16 MiB.
  int64_t bytes_a_byte;
};

// Returns the line that the last refusal would print.
const std::string& last_refusal();
// Keeps the error's line as the last refusal. Errors: Finding if it is not one short plain line.
void check_refusal(const Error& error);

// Returns the reader's verdict. IoError must report corrupt data; `Also` reports sound but
// unsupported data.
template <class Also = IoError, class Read>
Verdict verdict_of(Read&& read) {
  try {
    read();
    return Verdict::kAccepted;
  } catch (const IoError& error) {
    demand(error.code() == ExitCode::kCorruptData, "a refusal with another code than 65");
    check_refusal(error);
  } catch (const InvalidArgument& error) {
    if (!std::is_same_v<Also, InvalidArgument>) throw;
    demand(error.code() == ExitCode::kConfiguration, "an unsupported file with another code");
    check_refusal(error);
  }
  return Verdict::kRefused;
}

}  // namespace fsdp
