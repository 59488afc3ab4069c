// The five kinds of error that this library throws, and the one line that programs print for them.
//
// A library never exits and never prints. A program catches fsdp::Error, writes
// `error_line(error, place)` to stderr and exits with `error.exit_code()`; docs/errors.md explains
// every code.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fsdp {

// Exit codes; the numbers are sysexits.h's where it has the case.
enum class ExitCode : int {
  kOk = 0,
  kUsage = 64,          // wrong command line
  kCorruptData = 65,    // a file's content is not what it claims to be
  kInternal = 70,       // broken invariant, misuse of the API, device failure
  kCannotCreate = 73,   // an output cannot be created
  kIoError = 74,        // reading or writing failed (disk full)
  kPeerFailed = 75,     // another rank died or left: temporary, restart the job
  kConfiguration = 78,  // environment, options or ranks that do not fit together
};

// What is said about an error. `what` is required; the rest may be empty.
struct ErrorText {
  std::string what;   // what failed, with expected and got and their units
  std::string where;  // unit, file and byte, collective and its sequence number
  std::string cause;  // the first cause, if another rank or the system is the reason
  std::string hint;   // what the reader can do about it
};

// Base of all errors. what() is `WHAT (WHERE); CAUSE; hint: …`, without the parts that are empty.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, ErrorText text);

  ExitCode code() const { return code_; }
  int exit_code() const { return static_cast<int>(code_); }
  const ErrorText& text() const { return text_; }

 private:
  ExitCode code_;
  ErrorText text_;
};

// An argument, option or environment variable is wrong. kConfiguration, or kUsage for command
// lines.
class InvalidArgument : public Error {
 public:
  explicit InvalidArgument(ErrorText text, ExitCode code = ExitCode::kConfiguration)
      : Error(code, std::move(text)) {}
};

// A call came in a state that does not allow it.
class StateError : public Error {
 public:
  explicit StateError(ErrorText text) : Error(ExitCode::kInternal, std::move(text)) {}
};

// Ranks could not work together: one died, timed out, or issued something else.
// kPeerFailed, or kConfiguration when the start-up handshake refuses.
class CommError : public Error {
 public:
  explicit CommError(ErrorText text, ExitCode code = ExitCode::kPeerFailed)
      : Error(code, std::move(text)) {}
};

// A device or its memory failed.
class DeviceError : public Error {
 public:
  explicit DeviceError(ErrorText text) : Error(ExitCode::kInternal, std::move(text)) {}
};

// A file: kCorruptData, kCannotCreate or kIoError.
class IoError : public Error {
 public:
  IoError(ExitCode code, ErrorText text) : Error(code, std::move(text)) {}
};

// Who speaks, for the error line. A negative step means "before the first step" and is left out.
struct ErrorPlace {
  int rank = 0;
  int world_size = 1;
  std::string host;
  int64_t step = -1;
};

// `fsdp: error[CODE] rank R/W host H step S: WHAT (WHERE); CAUSE; hint: …`, always one line:
// control characters in the text are escaped.
std::string error_line(const Error& error, const ErrorPlace& place);
// The same for an exception of another kind: code 70, and what message_of says.
std::string error_line(const std::exception& error, const ErrorPlace& place);
// `fsdp: warning rank R/W host H step S: WHAT (WHERE); CAUSE; hint: …`: the run goes on.
std::string warning_line(const ErrorText& text, const ErrorPlace& place);
// what() without the stack that LibTorch appends to its own (several KB), and without trailing line
// breaks. Lifetime: as long as what().
std::string_view message_of(const std::exception& error);
// The code of any exception: its own if it is an fsdp::Error, else kInternal.
ExitCode exit_code_of(const std::exception& error);

}  // namespace fsdp
