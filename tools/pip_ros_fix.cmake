# For building messages against the ROS wheels from PyPI:
#   cmake -DCMAKE_PROJECT_INCLUDE=<this file> ...
#
# The wheels' exported targets name include directories of the machine they were made on (/opt/python/...). CMake
# refuses a target whose include directory does not exist, so those entries are dropped once the project has imported
# everything. Nothing is lost: the generated code finds Python's and numpy's headers through FindPython3. On an
# ordinary ROS installation there is no such entry and this does nothing. Needs CMake 3.21.

function(spec_planner_drop_foreign_includes)
  get_property(imported DIRECTORY "${CMAKE_SOURCE_DIR}" PROPERTY IMPORTED_TARGETS)
  foreach(target IN LISTS imported)
    get_property(includes TARGET "${target}" PROPERTY INTERFACE_INCLUDE_DIRECTORIES)
    set(existing "")
    foreach(include IN LISTS includes)
      if(EXISTS "${include}" OR NOT include MATCHES "^/opt/python/")
        list(APPEND existing "${include}")
      endif()
    endforeach()
    if(NOT "${existing}" STREQUAL "${includes}")
      set_property(TARGET "${target}" PROPERTY INTERFACE_INCLUDE_DIRECTORIES "${existing}")
    endif()
  endforeach()
endfunction()

# CMake reads this file at every project() call; the clean-up is due once, at the end of the top-level CMakeLists.txt.
if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)
  get_property(scheduled GLOBAL PROPERTY SPEC_PLANNER_DROP_SCHEDULED)
  if(NOT scheduled)
    set_property(GLOBAL PROPERTY SPEC_PLANNER_DROP_SCHEDULED TRUE)
    cmake_language(DEFER CALL spec_planner_drop_foreign_includes)
  endif()
endif()
