// A check for readers of untrusted files. For any bytes, a reader must return a valid result or
// throw an error that its header promises. The error's text must be one short line.
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

// The error that a check throws if a reader breaks its promise.
class Finding : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Throws a Finding with the text `otherwise` if `sound` is false.
void demand(bool sound, const std::string& otherwise);

struct ByteReader {
  std::string_view name;
  // Errors: Finding. Any other exception also means that the reader broke its promise.
  Verdict (*read)(std::string_view bytes);
  // The reader may hold `bytes_a_byte` times the size of its input, and 16 MiB more, at once.
  int64_t bytes_a_byte;
};

// Returns the line that the last refusal prints.
const std::string& last_refusal();
// Stores the error's line as the last refusal. Errors: Finding if it is not one short plain line.
void check_refusal(const Error& error);

// Calls the reader and returns its verdict. IoError must report corrupt data. `Also` reports valid
// data that the reader does not support.
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
