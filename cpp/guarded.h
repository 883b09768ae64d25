// What every function of the bridge is wrapped in: C++ exceptions end here, as text.

#pragma once

#include <c10/util/Exception.h>

#include <cstring>
#include <exception>

// Runs `body`; gives nullptr, or a message allocated with malloc that the caller frees.
template <typename F>
char* guarded(F&& body) {
  try {
    body();
  } catch (const c10::Error& e) {
    return strdup(e.what_without_backtrace());
  } catch (const std::exception& e) {
    return strdup(e.what());
  } catch (...) {
    return strdup("unknown C++ exception");
  }
  return nullptr;
}
