// The five kinds of errors that this library throws, and the line that a program prints for an
// error.
//
// The library neither exits nor prints. A program catches fsdp::Error, writes `error_line(error,
// place)` to stderr and exits with `error.exit_code()`; run_program (program.h) does this.
// docs/errors.md explains every code.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fsdp {

// Exit codes. They equal the codes of sysexits.h where sysexits.h has a code for the case.
enum class ExitCode : int {
  kOk = 0,
  kUsage = 64,          // wrong command line
  kCorruptData = 65,    // a file is damaged or of an unexpected format
  kInternal = 70,       // broken invariant, misuse of the API, device failure
  kCannotCreate = 73,   // an output cannot be created
  kIoError = 74,        // reading or writing failed (disk full)
  kPeerFailed = 75,     // another rank died or left; restart the job
  kConfiguration = 78,  // environment, options or ranks that do not fit together
};

// The text of an error. `what` is required; the other fields may be empty.
struct ErrorText {
  std::string what;   // what failed, with expected and actual value and their units
  std::string where;  // unit, file and byte, or collective and its sequence number
  std::string cause;  // the earlier failure of another rank or of the system, if any
  std::string hint;   // an instruction for the reader
};

// Base class of all errors. what() is `WHAT (WHERE); CAUSE; hint: …`; empty fields are left out.
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

// A wrong argument, option or environment variable. The code is kConfiguration, or kUsage for
// command lines.
class InvalidArgument : public Error {
 public:
  explicit InvalidArgument(ErrorText text, ExitCode code = ExitCode::kConfiguration)
      : Error(code, std::move(text)) {}
};

// A call that is not allowed in the current state.
class StateError : public Error {
 public:
  explicit StateError(ErrorText text) : Error(ExitCode::kInternal, std::move(text)) {}
};

// A failure between ranks: a rank died, timed out, or issued another collective. The code is
// kPeerFailed, or kConfiguration if the handshake at start-up failed.
class CommError : public Error {
 public:
  explicit CommError(ErrorText text, ExitCode code = ExitCode::kPeerFailed)
      : Error(code, std::move(text)) {}
};

// A failure of a device or of its memory.
class DeviceError : public Error {
 public:
  explicit DeviceError(ErrorText text) : Error(ExitCode::kInternal, std::move(text)) {}
};

// A failure of a file. The code is kCorruptData, kCannotCreate or kIoError.
class IoError : public Error {
 public:
  IoError(ExitCode code, ErrorText text) : Error(code, std::move(text)) {}
};

// The rank, host and step that an error line names. A negative step means "before the first step"
// and is not printed.
struct ErrorPlace {
  int rank = 0;
  int world_size = 1;
  std::string host;
  int64_t step = -1;
};

// Returns `fsdp: error[CODE] rank R/W host H step S: WHAT (WHERE); CAUSE; hint: …`. The result is
// always one line, because control characters in the text are escaped.
std::string error_line(const Error& error, const ErrorPlace& place);
// Returns the line for an exception that is not an fsdp::Error. The line has code 70 and
// message_of(error).
std::string error_line(const std::exception& error, const ErrorPlace& place);
// Returns `fsdp: warning rank R/W host H step S: WHAT (WHERE); CAUSE; hint: …`, for a run that
// continues.
std::string warning_line(const ErrorText& text, const ErrorPlace& place);
// Returns `fsdp: note: WHAT`.
std::string note_line(const ErrorText& text);
// Returns what() without the stack trace that LibTorch appends to its own errors (several KB), and
// without trailing line breaks. The result is valid as long as error.what().
std::string_view message_of(const std::exception& error);
// Returns the code of an fsdp::Error, and kInternal for any other exception.
ExitCode exit_code_of(const std::exception& error);

}  // namespace fsdp
