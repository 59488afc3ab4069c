#include <algorithm>
#include <chrono>
#include <thread>

#include "kernels/cpu/kernels.h"
#include "runtime/cpu/cpu_stream.h"

namespace fsdp::kernels::cpu {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

void mark_time(Stream& stream, int64_t* ns) {
  cpu_stream(stream).run([ns] {
    *ns = std::chrono::duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
  });
}

void pause_since(Stream& stream, std::span<const int64_t> marks, int64_t ns) {
  // The marks are read in stream order, because earlier work of the stream may write them.
  cpu_stream(stream).run([marks, ns] {
    const nanoseconds until(*std::max_element(marks.begin(), marks.end()) + ns);
    std::this_thread::sleep_until(steady_clock::time_point(until));
  });
}

}  // namespace fsdp::kernels::cpu
